"""Who reads how much of its prompt in a step, and how the amount follows from measured passes."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from specstream.engine.prefill import Pace, Step, share_out


def waiting(unread: int) -> Any:
    return SimpleNamespace(stats=SimpleNamespace(rounds=0), unread=unread)


def answered() -> Any:
    return SimpleNamespace(stats=SimpleNamespace(rounds=3), unread=1)


def counts(step: Step) -> list[int]:
    return [count for _, count in step.reading]


def test_whoever_is_answered_is_passed_over_whatever_the_budget() -> None:
    batch = [answered(), waiting(50), answered()]
    step = share_out(batch, chunk=16, budget=1)
    assert step.fresh == []
    assert counts(step) == [1]


def test_a_prompt_that_fits_is_read_at_once() -> None:
    batch = [waiting(16), waiting(17)]
    step = share_out(batch, chunk=16, budget=100)
    assert step.fresh == [batch[0]]
    assert step.reading == [(batch[1], 16)]


def test_the_oldest_reads_first_and_what_it_leaves_goes_to_the_next() -> None:
    batch = [waiting(10), waiting(40), waiting(40), waiting(3)]
    step = share_out(batch, chunk=20, budget=36)
    assert step.fresh == [batch[0]]
    assert step.reading == [(batch[1], 20), (batch[2], 6)]  # nothing is left for the youngest


def test_nobody_is_answered_before_its_whole_prompt_fits_in_the_step() -> None:
    batch = [waiting(30), waiting(7)]
    step = share_out(batch, chunk=512, budget=36)
    assert step.fresh == [batch[0]]
    assert counts(step) == [6]


def test_in_any_step_the_budget_holds_and_somebody_gets_on() -> None:
    rng = random.Random(1)
    for _ in range(2000):
        batch = [
            waiting(rng.randint(1, 60)) if rng.random() < 0.6 else answered()
            for _ in range(rng.randint(1, 12))
        ]
        chunk, budget = rng.randint(1, 40), rng.randint(1, 80)
        step = share_out(batch, chunk, budget)
        fresh = step.fresh
        assert sum(r.unread for r in fresh) + sum(counts(step)) <= budget
        assert all(0 < count <= chunk and count < r.unread for r, count in step.reading)
        assert not any(r.stats.rounds for r in (*fresh, *(r for r, _ in step.reading)))
        assert fresh or step.reading or all(r.stats.rounds for r in batch)
        # Order of arrival: whoever gets nothing is followed by nobody who gets anything.
        served = [id(r) for r in (*fresh, *(r for r, _ in step.reading))]
        got = [id(r) in served for r in batch if r.stats.rounds == 0]
        assert got == sorted(got, reverse=True)


def test_prompts_are_read_to_their_end_in_the_least_number_of_steps() -> None:
    batch: list[Any] = [waiting(100), waiting(35), waiting(64)]
    steps = 0
    while any(r.stats.rounds == 0 for r in batch):
        step = share_out(batch, chunk=64, budget=48)
        left = {id(request): count for request, count in step.reading}
        for request in batch:
            request.unread -= left.get(id(request), 0)
            if request in step.fresh:
                request.stats.rounds, request.unread = 1, 1
        steps += 1
    assert steps == 5  # 199 tokens, 48 a step


def test_before_anything_is_measured_a_guess_is_read() -> None:
    assert Pace().budget(512, 0) == 64
    assert Pace().budget(20, 3) == 20


def paced(round_ms: float, token_ms: float, passes: int = 200) -> Pace:
    """What is learned on a machine where a round takes ``round_ms`` and a prompt token ``token_ms``."""
    pace = Pace()
    for read in range(20, 20 + passes):
        pace.observe(round_ms, 0, beside=True)
        pace.observe(round_ms + read * token_ms, read, beside=True)
    return pace


@pytest.mark.parametrize(
    ("round_ms", "token_ms", "budget"),
    [(10.0, 0.125, 100), (40.0, 0.05, 512), (10.0, 5.0, 16), (0.1, 0.1, 16)],
    ids=["a quarter longer than a round", "never more than a chunk", "slow", "tiny"],
)
def test_as_much_is_read_as_a_listener_does_not_hear(
    round_ms: float, token_ms: float, budget: int
) -> None:
    assert abs(paced(round_ms, token_ms).budget(512, 0) - budget) <= 1


def test_what_is_proposed_leaves_less_to_read() -> None:
    """So that every step takes about as long."""
    pace = paced(10.0, 0.125)
    assert pace.budget(512, 40) == pace.budget(512, 0) - 40
    assert pace.budget(512, 1000) == 16  # but somebody gets on
    assert pace.budget(50, 10) == 50


def test_reading_that_costs_nothing_is_not_held_back() -> None:
    """A wide device reads a chunk in the time of a round."""
    assert paced(10.0, 0.0).budget(512, 64) == 512
    assert paced(10.0, -0.01).budget(512, 64) == 512


def test_a_change_of_pace_is_followed_and_an_outlier_is_not() -> None:
    pace = paced(10.0, 0.1)
    pace.observe(500.0, 0, beside=True)
    assert 125 < pace.budget(4096, 0) < 1375
    for _ in range(50):
        pace.observe(10.0, 0, beside=True)
        pace.observe(10.0 + 100 * 0.4, 100, beside=True)
    assert 29 <= pace.budget(512, 0) <= 33


def test_reading_alone_tells_a_first_price_and_no_more_once_it_was_seen_beside_a_round() -> None:
    """It takes a pass of its own, so that little follows from it for what it adds to another's."""
    pace = Pace()
    pace.observe(90.0, 400, beside=False)
    assert pace.budget(512, 0) == 64  # what a round takes isn't known yet
    pace.observe(10.0, 0, beside=True)
    pace.observe(60.0, 400, beside=False)
    assert pace.budget(512, 0) == pytest.approx(1.25 * 10.0 / 0.125, abs=1)
    pace.observe(20.0, 80, beside=True)
    for _ in range(50):
        pace.observe(10.0, 20, beside=False)
        pace.observe(10.0, 0, beside=False)  # nobody was answered: nothing to learn
    assert pace.budget(512, 0) == pytest.approx(1.25 * 10.0 / 0.125, abs=1)


def test_short_prompts_read_alone_on_a_wide_device_hold_nobody_back() -> None:
    pace = Pace()
    for _ in range(20):
        pace.observe(10.0, 0, beside=True)
        pace.observe(10.0, 20, beside=False)
    assert pace.budget(512, 0) == 512


def test_rounds_that_grow_while_somebody_always_reads_are_followed() -> None:
    """Half of what is off is taken for theirs; all of it for the tokens' would starve the prompts."""
    pace = paced(10.0, 0.125)
    for _ in range(100):
        read = pace.budget(512, 0)
        pace.observe(18.0 + 0.125 * read, read, beside=True)
    assert 75 <= pace.budget(512, 0) <= 180


def test_a_few_tokens_at_the_end_of_a_prompt_say_nothing() -> None:
    """One more sequence costs something whatever its length: three tokens would seem dear."""
    pace = paced(10.0, 0.125)
    for _ in range(100):
        pace.observe(12.0, 3, beside=True)
    assert abs(pace.budget(512, 0) - 100) <= 1
