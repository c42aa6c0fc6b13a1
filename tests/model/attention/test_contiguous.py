"""Attention of several sequences in one plan: each as if it were alone."""

from typing import Any

import pytest
import torch
import torch.nn.functional as functional

from specstream.model.attention.base import Batch
from specstream.model.attention.contiguous import ContiguousAttention
from specstream.model.decoder import Decoder
from specstream.model.kv import ContiguousCache, RowCache
from tests.model.families import build

_LAYERS, _HEADS, _DIM = 2, 6, 8


def _backend(kv_heads: int) -> ContiguousAttention:
    sizes = {"hidden_size": _HEADS * _DIM, "num_attention_heads": _HEADS}
    decoder = Decoder.of(build("llama", num_key_value_heads=kv_heads, **sizes))
    assert decoder is not None and isinstance(decoder.attention, ContiguousAttention)
    return decoder.attention


def _caches(backend: ContiguousAttention, held: list[int], fixed: list[int | None]) -> list[RowCache]:
    noise = torch.Generator().manual_seed(len(held))
    caches: list[RowCache] = []
    for rows, capacity in zip(held, fixed, strict=True):
        cache = backend.new_cache(capacity)
        for layer in cache.views(rows)[0] if rows else ():
            layer.normal_(generator=noise)
        cache.append_to(rows)
        caches.append(cache)
    return caches


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize(
    ("held", "counts", "keeps"),
    [
        ([9, 0, 300], [1, 1, 1], [1, 1, 1]),
        ([9, 40, 0, 255], [3, 1, 5, 2], [3, 1, 5, 2]),
        ([9, 40, 0, 255], [3, 1, 5, 2], [1, 1, 2, 2]),
        ([0, 17], [64, 2], [1, 2]),
        ([9, 40, 0, 255], [3, 1, 80, 2], [1, 1, 2, 2]),
        ([9, 40, 30, 255], [90, 1, 80, 2], [70, 1, 2, 1]),
    ],
)
@torch.inference_mode()
def test_a_batch_is_what_each_sequence_would_be_alone(
    kv_heads: int, held: list[int], counts: list[int], keeps: list[int]
) -> None:
    """In the rows that it writes, in what it reads, and when few rows are kept."""
    backend = _backend(kv_heads)
    fixed: list[int | None] = [None] * (len(held) - 1) + [512]
    ours, theirs = _caches(backend, held, fixed), _caches(backend, held, fixed)
    together = backend.plan(Batch(ours, counts, keeps))
    each = [
        backend.plan(Batch([cache], [count], [keep]))
        for cache, count, keep in zip(theirs, counts, keeps, strict=True)
    ]
    noise = torch.Generator().manual_seed(7)
    for layer in range(_LAYERS):
        queries = torch.randn(sum(counts), _HEADS, _DIM, generator=noise)
        kv = torch.randn(sum(counts), 2 * kv_heads, _DIM, generator=noise)
        parts = list(queries.split_with_sizes(counts))
        if layer == _LAYERS - 1:
            parts = [part[plan.narrow()] for plan, part in zip(each, parts, strict=True)]
            queries = queries[together.narrow()]
            assert torch.equal(queries, torch.cat(parts))
        fresh = kv.split_with_sizes(counts)
        wanted = [p.forward(layer, q, new) for p, q, new in zip(each, parts, fresh, strict=True)]
        torch.testing.assert_close(together.forward(layer, queries, kv), torch.cat(wanted))
    for our, their, count in zip(ours, theirs, counts, strict=True):
        assert isinstance(our, ContiguousCache) and isinstance(their, ContiguousCache)
        end = our.length + count
        for mine, other in zip(our.layer_rows(end), their.layer_rows(end), strict=True):
            assert torch.equal(mine[:, :end], other[:, :end])


@pytest.mark.parametrize("counts", [[1], [3], [70], [1, 3, 2]])
@torch.inference_mode()
def test_a_kernels_result_may_have_any_strides(
    counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some devices' kernels write queries before heads."""
    backend = _backend(2)
    noise = torch.Generator().manual_seed(3)
    queries = torch.randn(sum(counts), _HEADS, _DIM, generator=noise)
    kv = torch.randn(sum(counts), 4, _DIM, generator=noise)
    real = functional.scaled_dot_product_attention

    def attend() -> torch.Tensor:
        caches = _caches(backend, [9] * len(counts), [None] * len(counts))
        return backend.plan(Batch(caches, counts, counts)).forward(0, queries, kv)

    def queries_first(*args: Any, **options: Any) -> torch.Tensor:
        return real(*args, **options).transpose(1, 2).contiguous().transpose(1, 2)

    wanted = attend()
    monkeypatch.setattr(functional, "scaled_dot_product_attention", queries_first)
    assert torch.equal(attend(), wanted)
