"""Who reads how much of its prompt in a step."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from specstream.drafting.proposal import Proposal
from specstream.engine.core.proposing import plan_step


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
