"""Lanes, graphs and their memory; the recording itself is CUDA's, and is replaced here."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from specstream.model.graphs import cudagraphs
from specstream.model.graphs.cudagraphs import GraphedPasses
from specstream.model.graphs.static import StaticPass
from specstream.model.graphs.widths import CapturePlan
from specstream.model.lean import LeanDecoder
from specstream.model.slab import SlabCache
from tests.model.families import VOCAB, build, text, whole

PLAN = CapturePlan((1, 3), chain_widths=(2,), chain_steps=3)


class Recorder:
    """Does what CUDA does, as far as it can be seen: warm up, record, replay on the same memory."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        work()
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            work()

        return replay


class Both:
    """A model's plain and recorded passes; `step` takes the recorded one if it can."""

    def __init__(self) -> None:
        self.model = build("llama")
        lean = LeanDecoder.of(self.model)
        assert lean is not None
        self.lean, self.recorder = lean, Recorder()
        self.graphed = GraphedPasses(lean.weights, lean.rotary, PLAN, VOCAB, self.recorder)

    def step(self, tokens: Tensor, cache: SlabCache) -> Tensor:
        found = self.graphed(tokens, cache)
        if found is None:
            found = self.lean.logits(self.lean(tokens, [cache], [tokens.shape[0]]))
        return found


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudagraphs, "_FIRST_SHOWN", 16)


@torch.inference_mode()
def test_passes_of_all_kinds_in_turn_give_the_models_own_logits() -> None:
    """Plain and recorded ones, with junk behind, taken back, past the lane's first size."""
    both, ids = Both(), text(90)
    wanted, cache, at = whole(both.model, ids), both.lean.new_cache(), 0
    for count in (5, 1, 2, 3, 1, 7, 1, 1, 20, 2, 3, 1, 40, 3):
        both.step(text(2, seed=at), cache)
        cache.rollback_to(at)
        rows = both.step(ids[at : at + count], cache)
        torch.testing.assert_close(rows, wanted[at : at + count], atol=1e-4, rtol=1e-4)
        at += count
    assert cache.length == at == 90
    assert both.recorder.replayed == 14 + 10  # all but the wide ones


@torch.inference_mode()
def test_sequences_take_turns_in_the_lane_and_keep_their_rows() -> None:
    both = Both()
    texts = [text(40, seed=n) for n in (1, 2, 3)]
    wanted = [whole(both.model, ids) for ids in texts]
    caches = [both.lean.new_cache() for _ in texts]
    for at in range(0, 38, 2):
        for ids, cache, logits in zip(texts, caches, wanted, strict=True):
            rows = both.step(ids[at : at + 2], cache)
            torch.testing.assert_close(rows, logits[at : at + 2], atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_a_graph_is_recorded_once_for_each_width_and_size() -> None:
    both, cache = Both(), Both().lean.new_cache()
    for _ in range(20):
        both.step(text(1), cache)
    assert both.recorder.recorded == 2  # one token, 16 and 32 rows
    both.step(text(2), cache)
    both.step(text(3), cache)
    assert both.recorder.recorded == 3
    assert both.recorder.replayed == 22


@torch.inference_mode()
def test_a_chain_writes_what_single_steps_write() -> None:
    """Past the lane's first size, in turn with passes, and with another sequence in the lane."""
    both = Both()
    cache, plain, other = (both.lean.new_cache() for _ in range(3))
    for number in range(6):
        read = text(2, seed=number)
        found = both.graphed.chain(read, cache)
        both.step(text(1), other)
        assert found is not None
        for token, confidence in zip(*found, strict=True):
            logits = both.lean.logits(both.lean(read, [plain], [read.shape[0]]))[-1]
            top, best = logits.softmax(-1).max(-1)
            assert int(token) == int(best)
            torch.testing.assert_close(confidence, top, atol=1e-4, rtol=1e-4)
            read = token.reshape(1)
        for side in (cache, plain):
            both.step(read, side)
        assert cache.length == plain.length == 5 * (number + 1)
    assert both.graphed.chain(text(1), cache) is None
    both.graphed.drop_chain(2)
    assert both.graphed.chains == () and both.graphed.chain(text(2), cache) is None


@torch.inference_mode()
def test_a_sequence_longer_than_the_lane_runs_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudagraphs, "_LANE", 32)
    both, ids = Both(), text(50)
    wanted, cache = whole(both.model, ids), both.lean.new_cache()
    for at in range(50):
        rows = both.step(ids[at : at + 1], cache)
        torch.testing.assert_close(rows, wanted[at : at + 1], atol=1e-4, rtol=1e-4)
    assert both.recorder.replayed == 32
    cache.rollback_to(30)
    assert both.graphed.chain(ids[30:32], cache) is None


@torch.inference_mode()
def test_a_graph_holds_all_memory_that_it_knows() -> None:
    """A recorder keeps addresses, not tensors."""
    both = Both()
    seen: list[weakref.ref[Tensor]] = []
    run = StaticPass.run

    def watched(self: StaticPass, *args: Any) -> Tensor:
        _, cos, sin, _, columns, _ = args
        seen.extend(weakref.ref(one) for one in (cos, sin, columns))
        return run(self, *args)

    def addresses_only(work: Callable[[], None]) -> Callable[[], None]:
        work()
        return lambda: None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StaticPass, "run", watched)
        lean = both.lean
        graphed = GraphedPasses(lean.weights, lean.rotary, PLAN, VOCAB, addresses_only)
        graphed.record_all(lambda: None)
    lean.rotary.upto(5000)  # the table moves
    gc.collect()
    assert len(seen) > 6 and all(one() is not None for one in seen)


@torch.inference_mode()
def test_numbers_that_are_none_do_not_spread_to_the_next_in_the_lane() -> None:
    both, ids = Both(), text(8)
    bad, good = both.lean.new_cache(), both.lean.new_cache()
    both.step(text(5), bad)
    both.step(text(1), bad)
    bad._slab[:, :, :6] = torch.nan
    both.step(ids[:5], good)
    rows = both.step(ids[5:8], good)
    torch.testing.assert_close(rows, whole(both.model, ids)[5:], atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_who_leaves_the_lane_takes_no_more_room_than_it_needs() -> None:
    both = Both()
    first, second = both.lean.new_cache(), both.lean.new_cache()
    before = first.nbytes
    both.step(text(1), first)
    assert first.nbytes > before
    both.step(text(1), second)
    assert first.nbytes == before and first.length == 1


def test_a_failed_recording_leaves_the_rows_as_they_were() -> None:
    both = Both()
    with torch.inference_mode():
        cache = both.lean.new_cache()
        both.step(text(4), cache)
        both.graphed._claim(cache, 4)
        rows = cache._slab[:, :, :, :4].clone()

        def fails(work: Callable[[], None]) -> Callable[[], None]:
            work()
            raise RuntimeError("out of memory")

        both.graphed._capture = fails
        with pytest.raises(RuntimeError, match="out of memory"):
            both.graphed(text(1), cache)
        assert cache.length == 4 and torch.equal(cache._slab[:, :, :, :4], rows)


@torch.inference_mode()
def test_results_outlive_the_next_pass_and_owners_need_not() -> None:
    both = Both()
    first = both.step(text(1), both.lean.new_cache())
    kept = first.clone()
    gc.collect()  # the first sequence is gone, with its claim to the lane
    both.step(text(1, seed=5), both.lean.new_cache())
    assert torch.equal(first, kept)


@torch.inference_mode()
def test_a_width_that_is_dropped_is_not_used() -> None:
    both = Both()
    both.graphed.drop(3)
    assert both.graphed.widths == (1,)
    assert both.graphed(text(2), both.lean.new_cache()) is None
