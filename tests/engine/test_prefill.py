"""Who reads how much of its prompt in a step, and how the amount follows from measured passes."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from specstream.engine.prefill import PrefillBudget, plan_step
from specstream.speculation.proposal import Proposal


class Fake:
    """A request of which the plan looks at rounds and unread tokens only."""

    def __init__(self, unread: int, rounds: int = 0) -> None:
        self.stats = SimpleNamespace(rounds=rounds)
        self.sequence = SimpleNamespace(unread=unread)


def plan(batch: list[Any], chunk: int, budget: int) -> tuple[list[Any], list[tuple[Any, int]]]:
    """Who takes a first round, and who reads how many tokens beside."""
    proposals = [Proposal.empty() for request in batch if request.stats.rounds]
    parts: list[Any] = plan_step(
        batch, proposals, chunk=chunk, budget=budget, empty=Proposal.empty()
    )
    rounds = [part.request for part in parts if part.proposal is not None]
    assert rounds[: len(proposals)] == [request for request in batch if request.stats.rounds]
    reading = [(part.request, part.tokens) for part in parts[len(rounds) :]]
    return rounds[len(proposals) :], reading


def counts(reading: list[tuple[Any, int]]) -> list[int]:
    return [count for _, count in reading]


def test_requests_that_decode_take_part_whatever_the_budget() -> None:
    fresh, reading = plan([Fake(1, 3), Fake(50), Fake(1, 3)], chunk=16, budget=1)
    assert fresh == []
    assert counts(reading) == [1]


def test_a_prompt_that_fits_is_read_at_once() -> None:
    batch = [Fake(16), Fake(17)]
    assert plan(batch, chunk=16, budget=100) == ([batch[0]], [(batch[1], 16)])


def test_the_oldest_reads_first_and_what_it_leaves_goes_to_the_next() -> None:
    batch = [Fake(10), Fake(40), Fake(40), Fake(3)]
    fresh, reading = plan(batch, chunk=20, budget=36)
    assert fresh == [batch[0]]
    assert reading == [(batch[1], 20), (batch[2], 6)]  # nothing is left for the youngest


def test_nobody_is_answered_before_its_whole_prompt_fits_in_the_step() -> None:
    batch = [Fake(30), Fake(7)]
    fresh, reading = plan(batch, chunk=512, budget=36)
    assert fresh == [batch[0]]
    assert counts(reading) == [6]


def test_in_any_step_the_budget_holds_and_somebody_gets_on() -> None:
    rng = random.Random(1)
    for _ in range(2000):
        batch = [
            Fake(rng.randint(1, 60)) if rng.random() < 0.6 else Fake(1, 3)
            for _ in range(rng.randint(1, 12))
        ]
        chunk, budget = rng.randint(1, 40), rng.randint(1, 80)
        fresh, reading = plan(batch, chunk, budget)
        assert sum(r.sequence.unread for r in fresh) + sum(counts(reading)) <= budget
        assert all(0 < count <= chunk and count < r.sequence.unread for r, count in reading)
        assert not any(r.stats.rounds for r in (*fresh, *(r for r, _ in reading)))
        assert fresh or reading or all(r.stats.rounds for r in batch)
        # Order of arrival: a request that gets nothing is followed by none that gets anything.
        served = [id(r) for r in (*fresh, *(r for r, _ in reading))]
        got = [id(r) in served for r in batch if r.stats.rounds == 0]
        assert got == sorted(got, reverse=True)


def test_prompts_are_read_to_their_end_in_the_least_number_of_steps() -> None:
    batch = [Fake(100), Fake(35), Fake(64)]
    steps = 0
    while any(r.stats.rounds == 0 for r in batch):
        fresh, reading = plan(batch, chunk=64, budget=48)
        for request, count in reading:
            request.sequence.unread -= count
        for request in fresh:
            request.stats.rounds, request.sequence.unread = 1, 1
        steps += 1
    assert steps == 5  # 199 tokens, 48 a step


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
