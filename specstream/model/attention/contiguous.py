"""Attention over contiguous caches, one kernel call per sequence: for CPUs and reproducible mode."""

from __future__ import annotations

import itertools
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
from specstream.model.tree import Tree
from specstream.model.weights import DecoderWeights

__all__ = ["ContiguousAttention"]


class ContiguousAttention(AttentionBackend):
    """Attention over one `ContiguousCache` per sequence.

    Sequences of few new tokens share all operations but the copy into the cache and the kernel call.
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
        caches = cast("Sequence[ContiguousCache]", batch.caches)
        counts, keeps, trees = batch.counts, batch.keeps, batch.trees
        heads, masks = self._heads, self._masks
        total = len(caches)
        if total == 1:
            tree = trees[0] if trees else None
            return _One(heads, masks, caches[0], counts[0], keeps[0], tree)
        short = 0
        if trees is None:
            short = sum(1 for _ in itertools.takewhile(lambda count: count <= SHORT, counts))
            if short == total:
                return _Several(heads, masks, caches, counts, keeps)
        parts: list[_One | _Several] = []
        if short > 1:
            parts.append(_Several(heads, masks, caches[:short], counts[:short], keeps[:short]))
        for i in range(short if short > 1 else 0, total):
            tree = trees[i] if trees else None
            parts.append(_One(heads, masks, caches[i], counts[i], keeps[i], tree))
        return _Mixed(parts, masks.device)


class _One(AttentionPlan):
    """One sequence, whose last tokens may form a tree."""

    def __init__(
        self,
        heads: Heads,
        masks: Masks,
        cache: ContiguousCache,
        count: int,
        keep: int,
        tree: Tree | None,
    ) -> None:
        self._heads, self._masks, self._tree = heads, masks, tree
        self.rows, self.kept = count, keep
        self._end, self._fixed = cache.length + count, cache.fixed_capacity
        self._fresh, self._shown = cache.views(count)
        self._prepare(count)

    def _prepare(self, count: int) -> None:
        """Choose mask and kernel for the last ``count`` tokens as queries."""
        before = self._end - count
        if self._tree is None:
            self._mask = self._masks.causal(count, before, self._fixed)
        else:
            self._mask = self._masks.tree(self._tree, count, before, self._fixed)
        few = self._heads.attend_one if count == 1 else self._heads.attend_few
        self._attend = few if count <= SHORT else self._heads.attend_many

    def kept_rows(self) -> range:
        """Rows of this part whose output is needed."""
        return range(self.rows - self.kept, self.rows)

    def narrow(self) -> slice:
        """See `AttentionPlan.narrow`."""
        self._prepare(self.kept)
        return slice(self.rows - self.kept, None)

    def forward(self, layer: int, queries: Tensor, kv: Tensor) -> Tensor:
        """See `AttentionPlan.forward`."""
        fresh = self._fresh[layer]
        fresh.copy_(kv.view(fresh.shape))
        return self._attend(queries, self._shown[2 * layer], self._shown[2 * layer + 1], self._mask)


class _Several(AttentionPlan):
    """Several chains of few tokens each: per sequence and layer one copy and one kernel call."""

    def __init__(
        self,
        heads: Heads,
        masks: Masks,
        caches: Sequence[ContiguousCache],
        counts: Sequence[int],
        keeps: Sequence[int],
    ) -> None:
        self._heads, self._masks = heads, masks
        self._counts, self._keeps = list(counts), list(keeps)
        self.rows, self.kept = sum(counts), sum(keeps)
        self._ends = [cache.length + count for cache, count in zip(caches, counts, strict=True)]
        self._fixed = [cache.fixed_capacity for cache in caches]
        views = [cache.views(count) for cache, count in zip(caches, counts, strict=True)]
        self._fresh = list(zip(*(fresh for fresh, _ in views), strict=True))
        self._shown = list(zip(*(shown for _, shown in views), strict=True))
        self._prepare(self._counts)

    def _prepare(self, counts: list[int]) -> None:
        """Make masks for the last ``counts`` tokens of each sequence as queries."""
        each = zip(counts, self._ends, self._fixed, strict=True)
        self._seen = [self._masks.causal(count, end - count, fixed) for count, end, fixed in each]
        self._asked = [count * self._heads.group for count in counts]

    def kept_rows(self) -> list[int]:
        """Rows of this part whose output is needed."""
        return kept_rows(self._counts, self._keeps)

    def narrow(self) -> slice | Tensor:
        """See `AttentionPlan.narrow`."""
        if self.kept == self.rows:
            return slice(None)
        self._prepare(self._keeps)
        return to_device(self.kept_rows(), self._masks.device)

    def forward(self, layer: int, queries: Tensor, kv: Tensor) -> Tensor:
        """See `AttentionPlan.forward`."""
        heads = self._heads
        rows = kv.view(-1, 2, heads.keys, heads.dim).split_with_sizes(self._counts)
        for fresh, new in zip(self._fresh[layer], rows, strict=True):
            fresh.copy_(new)
        folded = heads.fold(queries).split_with_sizes(self._asked, 2)
        keys, values = self._shown[2 * layer], self._shown[2 * layer + 1]
        each = zip(folded, keys, values, self._seen, strict=True)
        mixed = [F.scaled_dot_product_attention(q, k, v, attn_mask=mask) for q, k, v, mask in each]
        return heads.unfold(torch.cat(mixed, 2))


class _Mixed(AttentionPlan):
    """A batch in parts: first the leading short sequences together, then the others one by one."""

    def __init__(self, parts: Sequence[_One | _Several], device: torch.device) -> None:
        self._parts, self._device = parts, device
        self._rows = [part.rows for part in parts]
        self._asked = self._rows

    def narrow(self) -> Tensor:
        """See `AttentionPlan.narrow`."""
        self._asked = [part.kept for part in self._parts]
        rows, start = list[int](), 0
        for part in self._parts:
            rows += [start + row for row in part.kept_rows()]
            start += part.rows
            part.narrow()
        return to_device(rows, self._device)

    def forward(self, layer: int, queries: Tensor, kv: Tensor) -> Tensor:
        """See `AttentionPlan.forward`."""
        each = zip(
            self._parts,
            queries.split_with_sizes(self._asked),
            kv.split_with_sizes(self._rows),
            strict=True,
        )
        return torch.cat([part.forward(layer, q, fresh) for part, q, fresh in each])
