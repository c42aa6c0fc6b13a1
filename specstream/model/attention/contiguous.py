"""Attention over contiguous caches, one kernel call per sequence: for CPUs and reproducible mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from specstream.model.attention.base import AttentionBackend, AttentionPlan, Batch, kept_rows
from specstream.model.attention.heads import Heads
from specstream.model.attention.masks import SHORT, Masks
from specstream.model.kv.contiguous import ContiguousCache
from specstream.model.transfer import to_device
from specstream.model.weights import DecoderWeights

__all__ = ["ContiguousAttention"]


class ContiguousAttention(AttentionBackend):
    """Attention over one `ContiguousCache` per sequence.

    If all sequences have few new tokens, they share all operations but the copy into the cache and the
    kernel call.
    """

    def __init__(self, weights: DecoderWeights) -> None:
        w = weights
        self._weights = w
        self._heads = Heads(w.heads, w.kv_heads, w.head_dim)
        self._masks = Masks(self._heads.group, w.dtype, w.device)

    def new_cache(self, fixed_capacity: int | None = None) -> ContiguousCache:
        """See `AttentionBackend.new_cache`."""
        w = self._weights
        shape = len(w.layers), w.kv_heads, w.head_dim
        return ContiguousCache(*shape, w.dtype, w.device, fixed_capacity)

    def plan(self, batch: Batch) -> AttentionPlan:
        """See `AttentionBackend.plan`."""
        return _Plan(self._heads, self._masks, batch)


class _Plan(AttentionPlan):
    """The attention of one pass: per sequence and layer one copy and one kernel call."""

    def __init__(self, heads: Heads, masks: Masks, batch: Batch) -> None:
        self._heads, self._masks, self._batch = heads, masks, batch
        self._counts = list(batch.counts)
        caches = cast("Sequence[ContiguousCache]", batch.caches)
        self._ends = [cache.length + n for cache, n in zip(caches, self._counts, strict=True)]
        views = [cache.views(n) for cache, n in zip(caches, self._counts, strict=True)]
        self._fresh = list(zip(*(fresh for fresh, _ in views), strict=True))
        self._shown = list(zip(*(shown for _, shown in views), strict=True))
        self._prepare(self._counts)

    def _prepare(self, queries: list[int]) -> None:
        """Make masks for the last ``queries`` tokens of each sequence."""
        self._queries, self._seen = queries, list[Tensor | None]()
        trees = self._batch.trees or [None] * len(queries)
        each = zip(queries, self._ends, self._batch.caches, trees, strict=True)
        for count, end, cache, tree in each:
            seen = (count, end - count, cache.fixed_capacity)
            mask = self._masks.tree(tree, *seen) if tree else self._masks.causal(*seen)
            self._seen.append(mask)
        self._folds = max(queries) <= SHORT

    def narrow(self) -> slice | Tensor:
        """See `AttentionPlan.narrow`."""
        self._prepare(list(self._batch.keeps))
        if len(self._counts) == 1:
            return slice(self._counts[0] - self._queries[0], None)
        return to_device(kept_rows(self._counts, self._queries), self._masks.device)

    def forward(self, layer: int, queries: Tensor, kv: Tensor) -> Tensor:
        """See `AttentionPlan.forward`."""
        heads = self._heads
        rows = _split(kv.view(-1, 2, heads.keys, heads.dim), self._counts, 0)
        for fresh, new in zip(self._fresh[layer], rows, strict=True):
            fresh.copy_(new)
        shown = self._shown[2 * layer], self._shown[2 * layer + 1], self._seen
        if self._folds:  # once for all sequences
            sizes = [count * heads.group for count in self._queries]
            each = zip(_split(heads.fold(queries), sizes, 2), *shown, strict=True)
            mixed = [
                F.scaled_dot_product_attention(q, k, v, attn_mask=mask) for q, k, v, mask in each
            ]
            return heads.unfold(_joined(mixed, 2))
        parts = list[Tensor]()
        for some, *rest in zip(_split(queries, self._queries, 0), *shown, strict=True):
            attend = heads.attend_few if some.shape[0] <= SHORT else heads.attend_many
            parts.append(attend(some, *rest))
        return _joined(parts, 0)


def _split(x: Tensor, sizes: list[int], dim: int) -> Sequence[Tensor]:
    return x.split_with_sizes(sizes, dim) if len(sizes) > 1 else [x]


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    return torch.cat(parts, dim) if len(parts) > 1 else parts[0]
