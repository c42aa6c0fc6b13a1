"""Graphs over a key-value pool; the recording itself is CUDA's, and is replaced here."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specstream.model import graphs
from specstream.model.attention.pooled import PooledAttention
from specstream.model.decoder import Decoder
from specstream.model.forward import ForwardInput
from specstream.model.graphs import CapturePlan, cudagraphs
from specstream.model.graphs.cudagraphs import GraphedPasses
from specstream.model.kv.base import RowCache
from tests.model.families import VOCAB, build, decoder_of, text, whole, whole_inputs
from tests.transfers import transfers

PLAN = CapturePlan((1, 3), chain_widths=(2,), chain_steps=3)
BATCHES = (1, 2, 4)


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
    """A model's eager and recorded passes; `step` takes the recorded one if it can."""

    def __init__(self, longest: int = 128) -> None:
        self.model = build("llama")
        self.decoder, self.recorder = decoder_of(self.model, "pooled", 4096), Recorder()
        self.graphed = GraphedPasses(
            self.decoder, PLAN, VOCAB, self.recorder, longest, batches=BATCHES
        )

    def step(self, tokens: Tensor, cache: RowCache) -> Tensor:
        return self.together([tokens], [cache])[0]

    def together(self, tokens: list[Tensor], caches: list[RowCache]) -> list[Tensor]:
        inputs = whole_inputs(tokens, caches)
        found = self.graphed(inputs)
        return self.decoder(inputs).logits if found is None else found


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
    assert both.recorder.replayed == 18 + 13  # all but the wide ones


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
    for all_rows, some in zip(whole_rows, kept, strict=True):
        assert torch.equal(all_rows[-some.shape[0] :], some)


@torch.inference_mode()
def test_a_batch_that_is_too_large_or_too_wide_runs_eagerly() -> None:
    both = Both()
    caches = [both.decoder.new_cache() for _ in range(5)]
    assert both.graphed(whole_inputs([text(1)] * 5, caches)) is None
    assert both.graphed(whole_inputs([text(1), text(4)], caches[:2])) is None
    assert [cache.length for cache in caches] == [0] * 5


@torch.inference_mode()
def test_a_replay_never_waits_for_the_device() -> None:
    both = Both()
    caches = [both.decoder.new_cache() for _ in range(3)]
    both.together([text(3), text(1), text(2)], caches)
    with transfers() as counter:
        both.together([text(1), text(3), text(2)], caches)
        both.graphed.chain(text(2), caches[0])
    assert counter.where == []


@torch.inference_mode()
def test_every_graph_is_recorded_once() -> None:
    both, checks = Both(), list[int]()
    both.graphed.record_all(lambda: checks.append(both.recorder.recorded))
    assert checks == list(range(7))  # three batches, two widths, and a chain
    caches = [both.decoder.new_cache() for _ in range(3)]
    both.together([text(1)] * 3, caches)
    both.graphed.chain(text(2), caches[0])
    assert both.recorder.recorded == 7 and both.recorder.replayed == 2


@torch.inference_mode()
def test_a_chain_writes_what_single_steps_write() -> None:
    """In turn with passes, and with another sequence."""
    both = Both()
    cache, plain, other = (both.decoder.new_cache() for _ in range(3))
    for number in range(6):
        read = text(2, seed=number)
        found = both.graphed.chain(read, cache)
        both.step(text(1), other)
        assert found is not None
        for token, confidence in zip(*found, strict=True):
            (logits,) = both.decoder([ForwardInput(read, plain)]).logits
            top, best = logits[0].softmax(-1).max(-1)
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
def test_sequences_longer_than_what_was_captured_run_eagerly() -> None:
    both, ids = Both(longest=32), text(50)
    wanted, cache = whole(both.model, ids), both.decoder.new_cache()
    for at in range(50):
        rows = both.step(ids[at : at + 1], cache)
        torch.testing.assert_close(rows, wanted[at : at + 1], atol=1e-4, rtol=1e-4)
    assert both.recorder.replayed == 32
    cache.rollback_to(30)
    assert both.graphed.chain(ids[30:32], cache) is None


def test_the_padded_kernel_which_reads_all_rows_is_captured_for_short_sequences_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cudagraphs, "_PADDED_ROWS", 64)
    assert Both(128).graphed._longest == 64


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

    def addresses_only(work: Callable[[], None]) -> Callable[[], None]:
        work()
        return lambda: None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(both.decoder.rotary, "upto", watched)
        graphed = GraphedPasses(both.decoder, PLAN, VOCAB, addresses_only, 128, BATCHES)
        graphed.record_all(lambda: None)
    both.decoder.rotary.upto(5000)  # the table moves
    gc.collect()
    assert len(seen) > 6 and all(one() is not None for one in seen)


@torch.inference_mode()
def test_recording_touches_no_sequences_rows() -> None:
    both = Both()
    cache = both.decoder.new_cache()
    both.decoder([ForwardInput(text(6), cache)])
    attention = both.decoder.attention
    assert isinstance(attention, PooledAttention)
    before = attention.pool.kv.clone()
    both.graphed.record_all(lambda: None)
    scratch = both.graphed._scratch.slot
    attention.pool.kv[:, :, scratch.start : scratch.start + scratch.rows] = 0
    assert torch.equal(attention.pool.kv, before)


@torch.inference_mode()
def test_a_failed_recording_leaves_the_sequence_as_it_was() -> None:
    both = Both()
    cache = both.decoder.new_cache()
    both.decoder([ForwardInput(text(4), cache)])

    def fails(work: Callable[[], None]) -> Callable[[], None]:
        work()
        raise RuntimeError("out of memory")

    both.graphed._capture = fails
    with pytest.raises(RuntimeError, match="out of memory"):
        both.step(text(1), cache)
    assert cache.length == 4


@torch.inference_mode()
def test_results_outlive_the_next_pass() -> None:
    both = Both()
    first = both.step(text(1), both.decoder.new_cache())
    kept = first.clone()
    both.step(text(1, seed=5), both.decoder.new_cache())
    assert torch.equal(first, kept)


@torch.inference_mode()
def test_a_width_that_is_dropped_is_not_used() -> None:
    both = Both()
    both.graphed.drop(1)
    item = ForwardInput(text(1), both.decoder.new_cache())
    assert both.graphed([item]) is not None
    both.graphed.drop(3)
    assert not both.graphed.widths
    assert both.graphed([item]) is None


def test_graphs_that_compute_something_else_are_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In any batch."""
    both = Both()
    graphs._drop_what_differs(both.decoder, both.graphed, VOCAB)
    assert (both.graphed.widths, both.graphed.chains) == ((1, 3), (2,))
    real = GraphedPasses.__call__

    def off(self: GraphedPasses, inputs: Sequence[ForwardInput]) -> list[Tensor] | None:
        found = real(self, inputs)
        wrong = len(inputs) == 4 and inputs[0].token_ids.shape[0] == 3
        return [rows + 0.1 * wrong for rows in found or []]

    monkeypatch.setattr(GraphedPasses, "__call__", off)
    graphs._drop_what_differs(both.decoder, both.graphed, VOCAB)
    assert both.graphed.widths == (1,)
    assert "the compiled pass of 3 tokens is off by" in caplog.text


@pytest.mark.gpu
def test_on_a_real_gpu_every_graph_agrees_with_the_eager_pass() -> None:
    """Which in turn agrees with the model's own forward, or there is no decoder."""
    model = build("llama").to("cuda", torch.bfloat16)  # type: ignore[arg-type]
    decoder = Decoder.of(model)
    assert decoder is not None
    made = graphs.compile_passes(decoder, PLAN, context_length=1024)
    assert (made.widths, made.chains) == ((1, 3), (2,))
