"""Sequences of a batch get the model's own logits from every attention back-end."""

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch

from specstream.model import kv
from specstream.model.attention import contiguous, pooled
from specstream.model.attention.kernels import Kernels, Ragged, padded
from specstream.model.attention.pooled import PooledAttention
from specstream.model.decoder import Decoder
from specstream.model.forward import ForwardInput
from specstream.model.kv import PooledCache, RowCache
from specstream.model.runner import ModelRunner
from specstream.model.tree import Tree
from specstream.model.weights import DecoderWeights, RotaryTable
from tests.model.families import FAMILY, build, decoder_of, text, valid_rows, whole, whole_inputs
from tests.support.transfers import transfers

BACKENDS = ["contiguous", "pooled"]


class Crowd:
    """Sequences that grow along texts of their own, compared with the model's own logits."""

    def __init__(self, model: Any, backend: str, lengths: Sequence[int], rows: int = 16_384) -> None:
        self.model, self.decoder = model, decoder_of(model, backend, rows)
        self.texts = [text(length, seed=number) for number, length in enumerate(lengths)]
        self.wanted = [whole(model, ids) for ids in self.texts]
        self.caches = [self.decoder.new_cache() for _ in lengths]

    def run(self, tokens: dict[int, torch.Tensor], keeps: list[int]) -> list[torch.Tensor]:
        each = zip(tokens.items(), keeps, strict=True)
        inputs = [ForwardInput(ids, self.caches[which], keep) for (which, ids), keep in each]
        return self.decoder(inputs).logits

    def go(self, counts: dict[int, int], keep: Callable[[int], int] = lambda n: n) -> None:
        """Advance some by so many tokens, in the order given."""
        keeps = [keep(n) for n in counts.values()]
        tokens = {which: self._next(which, n) for which, n in counts.items()}
        for which, rows in zip(counts, self.run(tokens, keeps), strict=True):
            end = self.caches[which].length
            wanted = self.wanted[which][end - rows.shape[0] : end]
            torch.testing.assert_close(rows, wanted, atol=1e-4, rtol=1e-4)

    def mislead(self, counts: dict[int, int]) -> None:
        """The same with other tokens, rolled back."""
        before = [cache.length for cache in self.caches]
        self.run({i: text(n, seed=90 + n) for i, n in counts.items()}, [1] * len(counts))
        for cache, length in zip(self.caches, before, strict=True):
            cache.rollback_to(length)

    def _next(self, which: int, count: int) -> torch.Tensor:
        at = self.caches[which].length
        return self.texts[which][at : at + count]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", sorted(FAMILY))
@torch.inference_mode()
def test_ragged_sequences_get_the_models_own_logits(name: str, backend: str) -> None:
    """In any order, with long parts among them, with few rows kept, after rows rolled back."""
    crowd = Crowd(build(name), backend, (60, 90, 160, 70, 170))
    crowd.go({0: 1, 1: 16, 2: 5})
    crowd.go({2: 2, 0: 1, 1: 1, 3: 30, 4: 90})
    crowd.mislead({0: 3, 1: 1, 2: 6, 3: 2})
    crowd.go({4: 1, 3: 3, 2: 2, 1: 4, 0: 2})
    crowd.go({0: 2, 1: 2, 2: 2, 3: 1, 4: 2}, keep=lambda n: 1)
    crowd.go({3: 1, 0: 3, 1: 2, 2: 80, 4: 30}, keep=lambda n: 2 if n in (3, 30) else 1)
    crowd.go({1: 7})
    crowd.go({0: 1, 1: 1, 2: 1, 3: 1, 4: 1})


@pytest.mark.parametrize("count", [1, 2, 7, 32])
@torch.inference_mode()
def test_pooled_and_contiguous_agree_to_rounding(count: int) -> None:
    """Chains and trees, short and long, at the start and behind a prefix."""
    rng, model = random.Random(count), build("qwen3")
    held = [rng.choice((0, 1, 30, 300)) for _ in range(count)]
    counts = [rng.choice((1, 2, 6, 80)) for _ in range(count)]
    shapes = [rng.choice((None, Tree((-1, -1, 0, 1, 1)))) for _ in range(count)]
    for trees in ([None] * count, shapes):
        found = []
        if trees is shapes:
            counts = [max(n, 6) for n in counts]
        for backend in BACKENDS:
            decoder = decoder_of(model, backend, 32_768)
            decoder.logits = lambda states: states
            caches = [decoder.new_cache() for _ in held]
            for number, (cache, rows) in enumerate(zip(caches, held, strict=True)):
                if rows:
                    decoder([ForwardInput(text(rows, number), cache)])
            ids = text(sum(counts), 99).split_with_sizes(counts)
            for keeps in (counts, [min(n, 6) for n in counts]):
                each = zip(ids, caches, keeps, trees, strict=True)
                found.append(torch.cat(decoder([ForwardInput(*one) for one in each]).logits))
                for cache, rows in zip(caches, held, strict=True):
                    assert cache.length == rows + counts[caches.index(cache)]
                    cache.rollback_to(rows)
        torch.testing.assert_close(found[0], found[2], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found[1], found[3], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@torch.inference_mode()
def test_a_pass_never_waits_for_the_device(backend: str) -> None:
    decoder = decoder_of(build("llama"), backend)
    caches = [decoder.new_cache() for _ in range(3)]
    for tree in (None, Tree((-1, -1))):
        parts, trees = text(9).split_with_sizes([3, 4, 2]), (None, tree, None)
        each = zip(parts, caches, [1, 3, 1], trees, strict=True)
        inputs = [ForwardInput(*one) for one in each]
        with transfers() as counter:
            decoder(inputs)
        assert counter.where == []


@pytest.mark.parametrize("backend", BACKENDS)
@torch.inference_mode()
def test_another_sequences_broken_numbers_stay_its_own(backend: str) -> None:
    """Neither a neighbour's rows, nor the slot's last owner's, nor rows that were rolled back."""
    crowd = Crowd(build("llama"), backend, (40, 40, 40))
    crowd.go({0: 5, 1: 8, 2: 20})
    broken = crowd.caches[2]
    _overwrite(broken, torch.nan)
    rows = crowd.run({i: text(3) for i in range(3)}, [3, 3, 3])
    assert rows[2].isnan().all() and not rows[0].isnan().any() and not rows[1].isnan().any()
    for cache, length in zip(crowd.caches, (5, 8, 20), strict=True):
        cache.rollback_to(length)
    crowd.caches[2] = crowd.decoder.new_cache()  # its slot is free, and is taken by another
    del broken, cache
    crowd.go({2: 3, 0: 2, 1: 2})


def _overwrite(cache: RowCache, value: float) -> None:
    """All valid rows."""
    if isinstance(cache, PooledCache):
        valid_rows(cache).fill_(value)
    else:
        length = cache.length
        cache.rollback_to(0)
        for layer in cache.views(length)[0]:  # type: ignore[attr-defined]
            layer.fill_(value)
        cache.append_to(length)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(6))
@torch.inference_mode()
def test_whatever_happens_to_them_they_stay_themselves(
    seed: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Growing, rolled back, dropped, interrupted, in any company."""
    rng = random.Random(seed)
    monkeypatch.setattr(kv, "FIRST_ROWS", rng.choice((1, 16, 256)))
    crowd = Crowd(build(rng.choice(sorted(FAMILY))), backend, [90] * rng.choice((3, 9, 19)))
    everybody = range(len(crowd.caches))
    for _ in range(40):
        who, what = rng.choice(everybody), rng.random()
        if what < 0.15:
            crowd.caches[who].rollback_to(rng.randint(0, crowd.caches[who].length))
        elif what < 0.25:
            crowd.caches[who] = crowd.decoder.new_cache()
        else:
            some = rng.sample(everybody, rng.randint(2, len(everybody)))
            counts = {i: rng.choice((1, 1, 2, 5, 20)) for i in some}
            fits = {i: n for i, n in counts.items() if crowd.caches[i].length + n <= 90}
            if what < 0.35:
                _interrupt(crowd, fits)
            elif fits and what < 0.5:
                crowd.mislead(fits)
            elif fits:
                crowd.go(fits, keep=lambda n: rng.randint(1, n))


class _Interrupted(Exception):
    pass


def _interrupt(crowd: Crowd, counts: dict[int, int]) -> None:
    """A pass that breaks in its second layer counts for nothing."""
    lengths = [cache.length for cache in crowd.caches]
    with pytest.MonkeyPatch.context() as patch:
        for plan in (contiguous.ContiguousPlan, pooled.PooledPlan):
            patch.setattr(plan, "forward", _broken(plan.forward))
        with suppress(_Interrupted):
            crowd.mislead(counts) if counts else None
    assert [cache.length for cache in crowd.caches] == lengths


def _broken(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def run(self: Any, layer: int, *args: torch.Tensor) -> torch.Tensor:
        if layer:
            raise _Interrupted
        return forward(self, layer, *args)

    return run


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_half_precision_is_as_near_as_the_models_own(dtype: torch.dtype, backend: str) -> None:
    model, exact = build("qwen3"), build("qwen3")
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    decoder = decoder_of(model, backend)
    texts = [text(n, seed=n) for n in (20, 33)]
    caches = [decoder.new_cache() for _ in texts]
    for start, stop in ((0, 17), (17, 18), (18, 20)):
        inputs = whole_inputs([t[start:stop] for t in texts], caches)
        for tokens, rows in zip(texts, decoder(inputs).logits, strict=True):
            wanted = whole(exact, tokens[:stop])[start:]
            theirs = whole(model, tokens[:stop])[start:].float()
            off, allowed = (rows.float() - wanted).abs(), (theirs - wanted).abs()
            assert off.mean() < 1.5 * allowed.mean()


@torch.inference_mode()
def test_a_pool_tells_how_much_of_it_is_free() -> None:
    runner, decoder = ModelRunner(build("llama")), decoder_of(build("llama"), "pooled", 1024)
    assert runner.free_cache_bytes is None
    runner.decoder = decoder
    assert runner.free_cache_bytes == 1024 * decoder.weights.kv_bytes
    cache = decoder.new_cache()
    decoder([ForwardInput(text(3), cache)])
    assert runner.free_cache_bytes == 1024 * decoder.weights.kv_bytes - cache.nbytes


@torch.inference_mode()
def test_all_sequences_share_one_kernel_call_a_layer() -> None:
    """Chains and trees alike, also without a row before the pass."""
    model, calls = build("llama"), list[bool]()
    weights = DecoderWeights.of(model)
    assert weights is not None

    def counted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, places: Ragged) -> torch.Tensor:
        calls.append(places.nodes is None)
        return padded(q, k, v, places)

    attention = PooledAttention(weights, 4096, Kernels(counted, counted, counted))
    decoder = Decoder(weights, RotaryTable.of(model, weights.head_dim), attention)
    plain = decoder_of(model, "contiguous")
    parts = text(9).split_with_sizes([3, 4, 2])

    def logits(of: Decoder, tree: Tree | None) -> list[torch.Tensor]:
        inputs = whole_inputs(parts, [of.new_cache() for _ in parts])
        return of([inputs[0], replace(inputs[1], tree=tree), inputs[2]]).logits

    for tree in (None, Tree((-1, -1)), Tree((-1, -1))):
        calls.clear()
        found = logits(decoder, tree)
        assert calls == [tree is None] * 2
        torch.testing.assert_close(found, logits(plain, tree))
