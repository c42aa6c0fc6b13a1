"""Attention over contiguous caches, one kernel call per sequence: for CPUs and reproducible mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from specstream.model.attention.base import AttentionBackend, AttentionPlan, Batch, kept_rows
from specstream.model.kv import ContiguousCache
from specstream.model.numerics import to_device
from specstream.model.tree import Tree
from specstream.model.weights import DecoderWeights

__all__ = ["ContiguousAttention", "ContiguousPlan", "Heads"]


@dataclass(frozen=True, slots=True)
class Heads:
    """The number of query heads and of key heads, and the size of a head."""

    queries: int
    keys: int
    dim: int

    @property
    def group(self) -> int:
        """Number of query heads that share a key head."""
        return self.queries // self.keys

    def fold(self, queries: Tensor) -> Tensor:
        """Reshape ``[n, heads, head_dim]`` to ``[1, kv_heads, n * group, head_dim]``; repeats no key."""
        each = queries.view(1, -1, self.keys, self.group * self.dim)
        return each.transpose(1, 2).reshape(1, self.keys, -1, self.dim)

    def unfold(self, mixed: Tensor) -> Tensor:
        """Undo `fold` for the output of attention: ``[n, heads * head_dim]``."""
        each = mixed.view(1, self.keys, -1, self.group, self.dim)
        return each.transpose(1, 2).reshape(-1, self.queries * self.dim)

    def attend_few(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attention of few queries, with folded heads; ``mask`` is folded, too."""
        folded = self.fold(queries)
        return self.unfold(F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask))

    def attend_many(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attention of many queries, not folded; causal if ``mask`` is None."""
        mixed = F.scaled_dot_product_attention(
            queries.transpose(0, 1).unsqueeze(0),
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=self.group > 1,
        )
        return mixed[0].transpose(0, 1).reshape(-1, self.queries * self.dim)


_SHORT = 64  # largest number of queries whose heads are folded, see `Heads.fold`


class ContiguousAttention(AttentionBackend):
    """Attention over one `ContiguousCache` per sequence.

    If all sequences have few new tokens, they share all operations but the copy into the cache and the
    kernel call.
    """

    def __init__(self, weights: DecoderWeights) -> None:
        w = weights
        self._heads = Heads(w.heads, w.kv_heads, w.head_dim)
        shape = len(w.layers), w.kv_heads, w.head_dim
        self._cache = partial(ContiguousCache, *shape, w.dtype, w.device)

    def new_cache(self, fixed_capacity: int | None = None) -> ContiguousCache:
        """See `AttentionBackend.new_cache`."""
        return self._cache(fixed_capacity)

    def plan(self, batch: Batch) -> AttentionPlan:
        """See `AttentionBackend.plan`."""
        return ContiguousPlan(self._heads, batch)


class ContiguousPlan(AttentionPlan):
    """The attention of one pass: per sequence and layer one copy and one kernel call."""

    def __init__(self, heads: Heads, batch: Batch) -> None:
        self._heads, self._batch = heads, batch
        self._counts = list(batch.counts)
        caches = cast("Sequence[ContiguousCache]", batch.caches)
        self._ends = [cache.length + n for cache, n in zip(caches, self._counts, strict=True)]
        views = [cache.views(n) for cache, n in zip(caches, self._counts, strict=True)]
        self._fresh = list(zip(*(fresh for fresh, _ in views), strict=True))
        self._shown = list(zip(*(shown for _, shown in views), strict=True))
        self._like: Tensor = self._shown[0][0]
        self.positions = to_device(batch.positions, self._like.device)
        self._prepare(self._counts)

    def _prepare(self, queries: list[int]) -> None:
        """Make masks for the last ``queries`` tokens of each sequence."""
        caches, trees = self._batch.caches, self._batch.trees or [None] * len(queries)
        each = zip(queries, self._ends, caches, trees, strict=True)
        self._masks = [self._mask(n, end, cache.fixed_capacity, tree) for n, end, cache, tree in each]
        self._queries, self._folds = queries, max(queries) <= _SHORT

    def _mask(self, count: int, end: int, fixed: int | None, tree: Tree | None) -> Tensor | None:
        """The additive mask of the last ``count`` of ``end`` rows, in the shape that `Heads` wants.

        ``[count * group, rows]`` for up to `_SHORT` queries, else ``[count, rows]``. None if no mask is
        needed or the kernel's own causal mask suffices.
        """
        before, width = end - count, fixed or end
        if tree is not None:
            seen = tree.seen_behind(before, count, width, self._like.device)
            mask = self._like.new_zeros(seen.shape).masked_fill_(~seen, -torch.inf)
        elif fixed is None and (count == 1 or (count > _SHORT and before == 0)):
            return None
        else:
            mask = self._like.new_full((count, width), -torch.inf).triu_(before + 1)
        return mask.repeat_interleave(self._heads.group, 0) if count <= _SHORT else mask

    def narrow(self) -> slice | Tensor:
        """See `AttentionPlan.narrow`."""
        self._prepare(list(self._batch.keeps))
        if len(self._counts) == 1:
            return slice(self._counts[0] - self._queries[0], None)
        return to_device(kept_rows(self._counts, self._queries), self._like.device)

    def forward(self, layer: int, queries: Tensor, kv: Tensor) -> Tensor:
        """See `AttentionPlan.forward`."""
        heads = self._heads
        rows = _split(kv.view(-1, 2, heads.keys, heads.dim), self._counts, 0)
        for fresh, new in zip(self._fresh[layer], rows, strict=True):
            fresh.copy_(new)
        shown = self._shown[2 * layer], self._shown[2 * layer + 1], self._masks
        if self._folds:  # once for all sequences
            sizes = [count * heads.group for count in self._queries]
            each = zip(_split(heads.fold(queries), sizes, 2), *shown, strict=True)
            mixed = [F.scaled_dot_product_attention(q, k, v, attn_mask=mask) for q, k, v, mask in each]
            return heads.unfold(_joined(mixed, 2))
        parts = list[Tensor]()
        for some, *rest in zip(_split(queries, self._queries, 0), *shown, strict=True):
            attend = heads.attend_few if some.shape[0] <= _SHORT else heads.attend_many
            parts.append(attend(some, *rest))
        return _joined(parts, 0)


def _split(x: Tensor, sizes: list[int], dim: int) -> Sequence[Tensor]:
    return x.split_with_sizes(sizes, dim) if len(sizes) > 1 else [x]


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    return torch.cat(parts, dim) if len(parts) > 1 else parts[0]
