"""Graphs over a key-value pool; the recording itself is CUDA's, and is replaced here."""

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specstream.model import graphs
from specstream.model.decoder import Decoder
from specstream.model.forward import Extras, ForwardInput, ForwardOutput
from specstream.model.graphs import CapturePlan, drop_what_differs, passes
from specstream.model.graphs.capture import batches_up_to, capture_all
from specstream.model.graphs.passes import GraphedPasses
from specstream.model.kv import RowCache
from specstream.model.tree import Tree
from tests.model.families import build, decoder_of, text, whole, whole_inputs
from tests.support.recorder import Recorder, addresses_only
from tests.support.transfers import transfers

PLAN = CapturePlan((1, 3), (6,))
BATCHES = (1, 2, 4, 8)


class Both:
    """A model's eager and recorded passes; `step` takes the recorded one if it can."""

    def __init__(self, longest: int = 128, depths: Sequence[int] = ()) -> None:
        self.model = build("llama")
        self.decoder, self.recorder = decoder_of(self.model, "pooled", 4096), Recorder()
        self.graphed = GraphedPasses(self.decoder, PLAN, self.recorder, longest, BATCHES, depths=depths)
        self.graphed.record_all(lambda: None)

    def step(self, tokens: Tensor, cache: RowCache) -> Tensor:
        return self.together([tokens], [cache])[0]

    def together(self, tokens: list[Tensor], caches: list[RowCache]) -> list[Tensor]:
        inputs = whole_inputs(tokens, caches)
        found = self.graphed(inputs)
        return self.decoder(inputs).logits if found is None else found.logits


@torch.inference_mode()
def test_passes_of_all_kinds_in_turn_give_the_models_own_logits() -> None:
    """Eager and recorded ones, with junk behind, rolled back, past the slot's first size."""
    both, ids = Both(400), text(300)
    wanted, cache, at = whole(both.model, ids), both.decoder.new_cache(), 0
    for count in (5, 1, 2, 3, 1, 7, 1, 1, 20, 2, 3, 1, 200, 3, 5, 1, 3, 2):
        both.step(text(2, seed=at), cache)
        cache.rollback_to(at)
        rows = both.step(ids[at : at + count], cache)
        torch.testing.assert_close(rows, wanted[at : at + count], atol=1e-4, rtol=1e-4)
        at += count
    assert cache.length == at == 261
    assert both.recorder.replayed == 18 + 15  # all but the wide ones


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@torch.inference_mode()
def test_a_ragged_batch_is_one_replay(count: int) -> None:
    """Filled up to a captured batch and width; no row of another sequence is touched."""
    both = Both()
    texts = [text(40, seed=n) for n in range(count + 1)]
    wanted = [whole(both.model, ids) for ids in texts]
    caches = [both.decoder.new_cache() for _ in texts]
    for number, (ids, cache) in enumerate(zip(texts, caches, strict=True)):
        both.decoder([ForwardInput(ids[: 4 + number], cache)])
    for turn in range(8):
        counts = [1 + (turn + number) % 3 for number in range(count)]
        live = list(zip(texts, caches[:count], counts, strict=False))
        tokens = [ids[cache.length : cache.length + n] for ids, cache, n in live]
        before = both.recorder.replayed
        for rows, cache, logits in zip(
            both.together(tokens, caches[:count]), caches, wanted, strict=False
        ):
            mine = logits[cache.length - rows.shape[0] : cache.length]
            torch.testing.assert_close(rows, mine, atol=1e-4, rtol=1e-4)
        assert both.recorder.replayed == before + 1
    bystander = caches[-1]
    at = bystander.length
    (rows,) = both.decoder([ForwardInput(texts[-1][at : at + 2], bystander, 2)]).logits
    torch.testing.assert_close(rows, wanted[-1][at : at + 2], atol=1e-4, rtol=1e-4)


def both_ways(both: Both, made: list[list[ForwardInput]], depths: tuple[int, ...]) -> list[Tensor]:
    found = both.graphed(made[0], depths)
    wanted = both.decoder(made[1], Extras(depths))
    assert found is not None
    for mine, theirs in zip(found.logits + found.states, wanted.logits + wanted.states, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)
    return found.states


@torch.inference_mode()
def test_trees_and_hidden_states_come_from_the_same_captured_passes() -> None:
    """Beside chains, at the start of a text and behind rows, with and without junk behind them."""
    both = Both(depths=(1, 2))
    trees = [Tree((-1, -1, 0, 2, 2)), None, Tree((-1, -1, -1))]
    for before in (0, 4):
        made = []
        for _ in range(2):
            caches = [both.decoder.new_cache() for _ in trees]
            for cache in caches:
                if before:
                    both.decoder([ForwardInput(text(before), cache)])
            tokens = [text(n, seed=n) for n in (6, 2, 3)]
            each = zip(whole_inputs(tokens, caches), trees, strict=True)
            made.append([replace(item, tree=tree) for item, tree in each])
        states = both_ways(both, made, (2, 1) if before else (1, 2))
        assert [tuple(one.shape[:2]) for one in states] == [(6, 2), (2, 2), (3, 2)]
    replayed = both.recorder.replayed
    assert replayed == 2 and both.graphed([made[0][1]], (0,)) is None


@torch.inference_mode()
def test_only_the_kept_rows_are_returned() -> None:
    both = Both()
    caches = [both.decoder.new_cache() for _ in range(3)]
    inputs = whole_inputs([text(3), text(2), text(1)], caches)
    whole_rows = both.graphed(inputs)
    for cache in caches:
        cache.rollback_to(0)
    kept = both.graphed([replace(inputs[0], keep=1), *inputs[1:]])
    assert whole_rows is not None and kept is not None
    for all_rows, some in zip(whole_rows.logits, kept.logits, strict=True):
        assert torch.equal(all_rows[-some.shape[0] :], some)


@torch.inference_mode()
def test_a_batch_that_is_too_large_or_too_wide_runs_eagerly() -> None:
    both = Both()
    caches = [both.decoder.new_cache() for _ in range(9)]
    assert both.graphed(whole_inputs([text(1)] * 9, caches)) is None
    assert both.graphed(whole_inputs([text(1), text(7)], caches[:2])) is None
    assert both.graphed(whole_inputs([text(4)] * 5, caches[:5])) is None  # wide: up to four
    assert [cache.length for cache in caches] == [0] * 9


@torch.inference_mode()
def test_a_replay_never_waits_for_the_device() -> None:
    both = Both()
    caches = [both.decoder.new_cache() for _ in range(3)]
    both.together([text(3), text(1), text(2)], caches)
    with transfers() as counter:
        both.together([text(1), text(3), text(2)], caches)
    assert counter.where == []


def test_captures_reach_the_greatest_batch_and_wide_ones_a_batch_of_four() -> None:
    assert [batches_up_to(most) for most in (1, 2, 4, 5, 33)] == [
        (1,), (1, 2), (1, 2, 4), (1, 2, 4, 8), (1, 2, 4, 8, 16, 32, 64),
    ]  # fmt: skip
    pairs = graphs.TARGET.passes(batches_up_to(32))
    assert max(width for batch, width in pairs if batch <= 4) == 17
    assert max(width for batch, width in pairs if batch == 32) == 8
    sizes = [batch * width for batch, width in pairs]
    assert sizes == sorted(sizes, reverse=True)


@torch.inference_mode()
def test_every_graph_is_recorded_once() -> None:
    both, checks = Both(), list[int]()
    both.graphed.record_all(lambda: checks.append(both.recorder.recorded))
    assert checks == list(range(11, 22))  # four batches, two widths, and three wide ones
    caches = [both.decoder.new_cache() for _ in range(3)]
    both.together([text(1)] * 3, caches)
    assert both.recorder.recorded == 22 and both.recorder.replayed == 1


@torch.inference_mode()
def test_sequences_longer_than_what_was_captured_run_eagerly() -> None:
    both, ids = Both(longest=32), text(50)
    wanted, cache = whole(both.model, ids), both.decoder.new_cache()
    for at in range(50):
        rows = both.step(ids[at : at + 1], cache)
        torch.testing.assert_close(rows, wanted[at : at + 1], atol=1e-4, rtol=1e-4)
    assert both.recorder.replayed == 32


def test_the_padded_kernel_which_reads_all_rows_is_captured_for_short_sequences_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(passes, "PADDED_ROWS", 64)
    assert Both(128).graphed.longest == 64


@torch.inference_mode()
def test_a_graph_holds_all_memory_that_it_knows() -> None:
    """A recorder keeps addresses, not tensors."""
    both = Both()
    seen: list[weakref.ref[Tensor]] = []
    upto = both.decoder.rotary.upto

    def watched(end: int) -> tuple[Tensor, Tensor]:
        found = upto(end)
        seen.extend(weakref.ref(one) for one in found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(both.decoder.rotary, "upto", watched)
        graphed = GraphedPasses(both.decoder, PLAN, addresses_only, 128, BATCHES)
        graphed.record_all(lambda: None)
    both.decoder.rotary.upto(5000)  # the table moves
    gc.collect()
    assert len(seen) > 6 and all(one() is not None for one in seen)


@torch.inference_mode()
def test_recording_touches_no_sequences_rows() -> None:
    both = Both()
    cache = both.decoder.new_cache()
    both.decoder([ForwardInput(text(6), cache)])
    attention: Any = both.decoder.attention
    scratch, kv = both.graphed.scratch.slot, attention.pool.kv
    kv[:, :, scratch.start : scratch.start + scratch.rows] = 0
    before = kv.clone()
    both.graphed.record_all(lambda: None)
    kv[:, :, scratch.start : scratch.start + scratch.rows] = 0
    assert torch.equal(kv, before)


def test_what_can_not_be_captured_is_left_out_and_the_others_are_used() -> None:
    def record(key: int) -> str:
        if key % 2:
            raise RuntimeError(f"operation not permitted when stream is capturing: {key}\nmore")
        return str(key)

    made, why = capture_all(range(6), record, lambda: None)
    assert made == {0: "0", 2: "2", 4: "4"}
    assert why == "operation not permitted when stream is capturing: 1"


@pytest.mark.parametrize(
    ("error", "tried"), [(torch.OutOfMemoryError("CUDA out of memory"), 3), (RuntimeError("no"), 5)]
)
def test_captures_end_when_memory_runs_out_or_none_works(error: Exception, tried: int) -> None:
    keys: list[int] = []

    def record(key: int) -> int:
        keys.append(key)
        if key > 1:
            raise error
        return key

    made, why = capture_all(range(20), record, lambda: None)
    assert (made, why, len(keys)) == ({0: 0, 1: 1}, str(error), tried)


def test_an_error_of_the_check_ends_the_capturing() -> None:
    class Stopped(Exception):
        pass

    def check() -> None:
        raise Stopped

    with pytest.raises(Stopped):
        Both().graphed.record_all(check)


@torch.inference_mode()
def test_results_outlive_the_next_pass() -> None:
    both = Both()
    first = both.step(text(1), both.decoder.new_cache())
    kept = first.clone()
    both.step(text(1, seed=5), both.decoder.new_cache())
    assert torch.equal(first, kept)


@torch.inference_mode()
def test_a_pass_that_is_dropped_is_not_used() -> None:
    both = Both()
    item = ForwardInput(text(1), both.decoder.new_cache())
    for key in both.graphed.captured:
        assert both.graphed([item]) is not None
        both.graphed.drop(key)
    assert both.graphed([item]) is None


def wrong(monkeypatch: pytest.MonkeyPatch, spoil: Any) -> list[tuple[int, int]]:
    """The passes that are dropped if the outputs of each are spoiled."""
    both, real = Both(depths=(1,)), GraphedPasses.__call__

    def spoiled(self: GraphedPasses, inputs: Any, *rest: Any) -> ForwardOutput | None:
        found = real(self, inputs, *rest)
        return found if found is None else spoil(inputs, found)

    monkeypatch.setattr(GraphedPasses, "__call__", spoiled)
    everything = both.graphed.captured
    drop_what_differs(both.decoder, both.graphed, None)
    return [key for key in everything if key not in both.graphed.captured]


def test_right_graphs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrong(monkeypatch, lambda inputs, found: found) == []


def test_graphs_that_compute_something_else_are_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def off(inputs: Any, found: ForwardOutput) -> ForwardOutput:
        bad = len(inputs) > 2 and inputs[0].token_ids.shape[0] == 3
        return replace(found, logits=[rows + 0.1 * bad for rows in found.logits])

    assert wrong(monkeypatch, off) == [(4, 3), (8, 3)]
    assert "captured passes that differ from eager ones are not used: 4 x 3 tokens by" in caplog.text


def test_exchanged_sequences_and_wrong_states_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def exchanged(inputs: Any, found: ForwardOutput) -> ForwardOutput:
        first, *rest = found.logits
        swap = len(inputs) > 2 and first.shape == rest[0].shape
        return replace(found, logits=[rest[0], first, *rest[1:]]) if swap else found

    with monkeypatch.context() as patch:
        assert [batch for batch, _ in wrong(patch, exchanged)] == [4, 4, 4, 8, 8]

    def states(inputs: Any, found: ForwardOutput) -> ForwardOutput:
        return replace(found, states=[one.roll(1, 0) for one in found.states])

    assert {width for _, width in wrong(monkeypatch, states)} == {3, 6}


@pytest.mark.gpu
def test_on_a_real_gpu_every_graph_agrees_with_the_eager_pass() -> None:
    """Which in turn agrees with the model's own forward, or there is no decoder."""
    model = build("llama").to("cuda", torch.bfloat16)  # type: ignore[arg-type]
    decoder = Decoder.of(model)
    assert decoder is not None
    plan = CapturePlan((1, 3), (6,), steps=3)
    made = graphs.compile_passes(decoder, plan, context_length=1024, most=8)
    assert len(made.passes.captured) == 11
    assert made.chains is None or len(made.chains.captured) == 20
