"""How many prompt tokens a step reads follows from measured passes."""

import pytest

from specstream.engine.core.lifecycle import PrefillBudget


def test_before_anything_is_measured_a_guess_is_read() -> None:
    assert PrefillBudget().tokens(512, 0) == 64
    assert PrefillBudget().tokens(20, 3) == 20


def learned(round_ms: float, token_ms: float, passes: int = 200) -> PrefillBudget:
    """What is learned on a machine where a round takes ``round_ms`` and a prompt token ``token_ms``."""
    budget = PrefillBudget()
    for read in range(20, 20 + passes):
        budget.observe(round_ms, 0, beside=True)
        budget.observe(round_ms + read * token_ms, read, beside=True)
    return budget


@pytest.mark.parametrize(
    ("round_ms", "token_ms", "tokens"),
    [(10.0, 0.125, 100), (40.0, 0.05, 512), (10.0, 5.0, 16), (0.1, 0.1, 16)],
    ids=["a quarter longer than a round", "never more than a chunk", "slow", "tiny"],
)
def test_as_much_is_read_as_a_listener_does_not_hear(
    round_ms: float, token_ms: float, tokens: int
) -> None:
    assert abs(learned(round_ms, token_ms).tokens(512, 0) - tokens) <= 1


def test_what_is_proposed_leaves_less_to_read() -> None:
    """So that every step takes about as long."""
    budget = learned(10.0, 0.125)
    assert budget.tokens(512, 40) == budget.tokens(512, 0) - 40
    assert budget.tokens(512, 1000) == 16  # but somebody gets on
    assert budget.tokens(50, 10) == 50


def test_reading_that_costs_nothing_is_not_held_back() -> None:
    """A wide device reads a chunk in the time of a round."""
    assert learned(10.0, 0.0).tokens(512, 64) == 512
    assert learned(10.0, -0.01).tokens(512, 64) == 512


def test_a_change_of_pace_is_followed_and_an_outlier_is_not() -> None:
    budget = learned(10.0, 0.1)
    budget.observe(500.0, 0, beside=True)
    assert 125 < budget.tokens(4096, 0) < 1375
    for _ in range(50):
        budget.observe(10.0, 0, beside=True)
        budget.observe(10.0 + 100 * 0.4, 100, beside=True)
    assert 29 <= budget.tokens(512, 0) <= 33


def test_reading_alone_tells_a_first_price_and_no_more_once_it_was_seen_beside_a_round() -> None:
    """It takes a pass of its own, so that little follows from it for what it adds to another's."""
    budget = PrefillBudget()
    budget.observe(90.0, 400, beside=False)
    assert budget.tokens(512, 0) == 64  # what a round takes isn't known yet
    budget.observe(10.0, 0, beside=True)
    budget.observe(60.0, 400, beside=False)
    assert budget.tokens(512, 0) == pytest.approx(1.25 * 10.0 / 0.125, abs=1)
    budget.observe(20.0, 80, beside=True)
    for _ in range(50):
        budget.observe(10.0, 20, beside=False)
        budget.observe(10.0, 0, beside=False)  # nobody was answered: nothing to learn
    assert budget.tokens(512, 0) == pytest.approx(1.25 * 10.0 / 0.125, abs=1)


def test_short_prompts_read_alone_on_a_wide_device_hold_nobody_back() -> None:
    budget = PrefillBudget()
    for _ in range(20):
        budget.observe(10.0, 0, beside=True)
        budget.observe(10.0, 20, beside=False)
    assert budget.tokens(512, 0) == 512


def test_rounds_that_grow_while_somebody_always_reads_are_followed() -> None:
    """Half of what is off is taken for theirs; all of it for the tokens' would starve the prompts."""
    budget = learned(10.0, 0.125)
    for _ in range(100):
        read = budget.tokens(512, 0)
        budget.observe(18.0 + 0.125 * read, read, beside=True)
    assert 75 <= budget.tokens(512, 0) <= 180


def test_a_few_tokens_at_the_end_of_a_prompt_say_nothing() -> None:
    """One more sequence costs something whatever its length: three tokens would seem dear."""
    budget = learned(10.0, 0.125)
    for _ in range(100):
        budget.observe(12.0, 3, beside=True)
    assert abs(budget.tokens(512, 0) - 100) <= 1


def test_more_is_read_where_nobody_notices() -> None:
    budget = learned(10.0, 0.5)
    assert abs(budget.tokens(512, 0) - 25) <= 1
    assert abs(budget.tokens(512, 0, patient=True) - 240) <= 10
