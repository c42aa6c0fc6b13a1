"""The calibration of simulated machines of known speed, whose clock only passes move."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specstream.drafting.calibration import calibrate
from specstream.drafting.policy.costs import Costs
from specstream.model.forward import ForwardInput, ForwardOutput
from specstream.model.graphs import DraftedChain
from specstream.model.runner import ModelRunner
from tests.support.tiny import tiny_model


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Paced:
    """A runner that takes a known time: ``base + a token's share`` a sequence, some of it shared.

    Where ``cold`` is above 0, a pass that does not follow one of the same runner takes so much longer:
    whatever ran meanwhile has driven its weights out of the caches.
    """

    device = torch.device("cpu")
    model_vocab_size = 7
    captured_steps = 0
    compiled: Any = None
    last: Paced | None = None

    def __init__(
        self,
        clock: Clock,
        base_ms: float,
        token_ms: float,
        *,
        row_ms: float = 0.0,
        cold_ms: float = 0.0,
        context_length: int = 512,
        fixed_width: int | None = None,
    ) -> None:
        self.clock = clock
        self.base_ms, self.token_ms, self.row_ms = base_ms, token_ms, row_ms
        self.cold_ms = cold_ms
        self.context_length, self.fixed_width = context_length, fixed_width
        self.passes: list[list[int]] = []
        self.caches: list[Cache] = []

    def new_cache(self) -> Any:
        self.caches.append(Cache(self.context_length + 4 * (self.fixed_width or 0)))
        return self.caches[-1]

    def forward(self, inputs: Sequence[ForwardInput]) -> ForwardOutput:
        counts = [item.token_ids.shape[0] for item in inputs]
        assert self.fixed_width is None or max(counts) <= self.fixed_width
        self.passes.append(counts)
        for item, count in zip(inputs, counts):
            assert int(item.token_ids.max()) < self.model_vocab_size
            item.cache.extend(count)  # type: ignore[attr-defined]
        cold = Paced.last is not None and Paced.last is not self
        ms = self.base_ms + self.token_ms * sum(counts) + self.row_ms * (len(counts) - 1)
        self.clock.now += (ms + self.cold_ms * cold) / 1e3
        Paced.last = self
        return ForwardOutput([torch.zeros(1, self.model_vocab_size) for _ in inputs])

    def chains(self, tokens: Sequence[torch.Tensor], caches: Sequence[Cache]) -> Any:
        for cache in caches:
            cache.extend(self.captured_steps)
        self.clock.now += (self.base_ms / 2 + self.captured_steps * self.token_ms) / 1e3
        return DraftedChain(torch.zeros(self.captured_steps, len(caches)), torch.zeros(0))


class Cache:
    def __init__(self, capacity: int) -> None:
        self.length = 0
        self.capacity = capacity

    def extend(self, count: int) -> None:
        self.length += count
        assert self.length <= self.capacity, "more than the model's positions"

    def rollback_to(self, length: int) -> None:
        assert length <= self.length
        self.length = length


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("specstream.drafting.calibration.time.perf_counter", made)
    monkeypatch.setattr(Paced, "last", None)
    return made


def costs_of(target: Paced, draft: Paced | None) -> Costs:
    return calibrate(target, draft)  # type: ignore[arg-type]


def test_the_passes_of_target_and_draft_are_found(clock: Clock) -> None:
    target = Paced(clock, 10.0, 0.5, row_ms=0.25)
    costs = costs_of(target, Paced(clock, 2.0, 0.1))
    for width in (1, 2, 5, 9):
        assert costs.verify(width) == pytest.approx(10.0 + 0.5 * width)
    # A pass costs a base, each token's share, and row_ms for the second request.
    assert costs.verify(2, 2) == pytest.approx(10.0 + 0.5 * 2 + 0.25)
    assert costs.drafts["draft"].passes(3) == pytest.approx(3 * 2.1)
    assert 10 * costs.drafts["draft"].read == pytest.approx(10 * 0.1)


def test_the_draft_is_timed_right_behind_the_target(clock: Clock) -> None:
    draft = Paced(clock, 2.0, 0.1, cold_ms=1.5)
    costs = costs_of(Paced(clock, 10.0, 0.5), draft)
    assert costs.drafts["draft"].passes(1) == pytest.approx(3.6)
    assert 1 * costs.drafts["draft"].read == pytest.approx(
        0.1
    )  # the cold start is the pass's, not the tokens'


def test_a_draft_with_captured_chains_is_timed_by_a_chain(clock: Clock) -> None:
    draft = Paced(clock, 2.0, 0.1)
    draft.captured_steps = 4
    costs = costs_of(Paced(clock, 10.0, 0.5), draft).drafts["draft"]
    assert costs.passes(4) == pytest.approx(1.0 + 4 * 0.1)
    assert [costs.made(count) for count in (1, 2, 4, 5, 6, 8, 9)] == [1, 4, 4, 5, 8, 8, 9]
    assert draft.caches[0].length == 128


def test_captured_passes_are_timed_with_all_places_taken(clock: Clock) -> None:
    """One sequence's few tokens say nothing about the width at which a pass gets slower."""
    target = Paced(clock, 10.0, 0.5, row_ms=0.25)
    target.compiled = SimpleNamespace(passes=SimpleNamespace(batches=(1, 2, 4, 8)))
    costs = costs_of(target, None)
    assert costs.padded and not costs_of(Paced(clock, 10.0, 0.5), None).padded
    for width in (3, 5):
        assert costs.verify(8 * width) == pytest.approx(10.0 + 0.5 * 8 * width + 7 * 0.25)


def test_without_a_draft_the_target_is_enough(clock: Clock) -> None:
    costs = costs_of(Paced(clock, 10.0, 0.5), None)
    assert costs.verify(9) == pytest.approx(14.5)


def test_requests_that_are_run_one_by_one_are_seen_to_be(clock: Clock) -> None:
    """If a batch is run as a loop over requests, each further request costs a whole pass."""
    target = Paced(clock, 10.0, 0.5, row_ms=10.0)
    assert costs_of(target, None).verify(4, 4) == pytest.approx(10.0 + 4 * 0.5 + 3 * 10.0)


def test_a_row_is_never_believed_to_save_time(clock: Clock) -> None:
    target = Paced(clock, 10.0, 0.5, row_ms=-3.0)
    costs = costs_of(target, None)
    assert costs.verify(2, 2) == pytest.approx(costs.verify(2, 1))


@pytest.mark.parametrize("width", [8, 16, 64])
def test_no_pass_is_wider_than_the_fixed_width(clock: Clock, width: int) -> None:
    target = Paced(clock, 10.0, 0.0, fixed_width=width)
    costs = costs_of(target, Paced(clock, 2.0, 0.1))
    assert costs.verify(5) == pytest.approx(10.0)
    assert max(count for counts in target.passes for count in counts) <= width


@pytest.mark.parametrize("context", [12, 20, 64, 66, 200])
def test_a_small_context_is_not_overrun(clock: Clock, context: int) -> None:
    """A model with learned position embeddings can't read tokens beyond its context length."""
    costs = costs_of(Paced(clock, 9.0, 1.0), Paced(clock, 2.0, 0.1, context_length=context))
    assert costs.drafts["draft"].passes(1) == pytest.approx(2.1)
    assert 10 * costs.drafts["draft"].read == pytest.approx(1.0)
    costs = costs_of(Paced(clock, 9.0, 1.0, context_length=context), None)
    assert costs.verify(1) == pytest.approx(10.0)


def test_stalls_are_left_out_and_so_is_the_first_pass(clock: Clock) -> None:
    class Stalling(Paced):
        def forward(self, inputs: Sequence[ForwardInput]) -> ForwardOutput:
            made = super().forward(inputs)
            if len(self.passes) % 5 == 0:  # two of seven, or one
                self.clock.now += 1.0
            return made

    assert costs_of(Stalling(clock, 10.0, 0.5), None).verify(1) == pytest.approx(10.5)


def test_a_machine_that_slows_down_meanwhile_does_not_bend_the_curve(clock: Clock) -> None:
    """Widths are measured in turn, as choices depend on the ratio of wide passes to narrow ones."""

    class Tiring(Paced):
        def forward(self, inputs: Sequence[ForwardInput]) -> ForwardOutput:
            made = super().forward(inputs)
            self.clock.now += 0.0002 * len(self.passes)  # 2 % of a pass, each time
            return made

    costs = costs_of(Tiring(clock, 10.0, 0.0), None)
    assert costs.verify(9) / costs.verify(1) < 1.1
    assert costs.verify(8, 8) / costs.verify(1) < 2.0


def test_a_stall_at_the_start_is_not_taken_for_a_slow_model(clock: Clock) -> None:
    class Starting(Paced):
        def forward(self, inputs: Sequence[ForwardInput]) -> ForwardOutput:
            made = super().forward(inputs)
            self.clock.now += 1.0 if len(self.passes) < 8 else 0.0  # all that comes in the first turn
            return made

    assert costs_of(Starting(clock, 10.0, 0.5), None).verify(9) == pytest.approx(14.5)


def test_a_slow_model_is_not_measured_for_long(clock: Clock) -> None:
    quick, slow = Paced(clock, 10.0, 0.0), Paced(clock, 900.0, 0.0)
    costs_of(quick, None)
    costs_of(slow, None)
    assert len(slow.passes) < len(quick.passes) / 2
    # Five widths (the pair's among them), each run once for nothing and twice for its time.
    assert len(slow.passes) <= 2 + 5 * 3


def test_everything_is_taken_back(clock: Clock) -> None:
    target, draft = Paced(clock, 10.0, 0.5), Paced(clock, 2.0, 0.1)
    costs_of(target, draft)
    assert {cache.length for cache in (*target.caches, *draft.caches)} == {128}


def test_it_runs_on_real_models() -> None:
    target = ModelRunner(tiny_model(50, context=64), fixed_width=8)
    costs = calibrate(target, ModelRunner(tiny_model(50, seed=1, context=32)))
    assert 0.0 < costs.verify(1) <= costs.verify(9)
    assert costs.drafts["draft"].passes(1) > 0.0
