"""The interface between a decoder and its attention: planned once per pass, run in each layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from specstream.model.kv import RowCache
from specstream.model.tree import Tree, positions_of

__all__ = ["AttentionBackend", "AttentionPlan", "Batch", "Ragged", "kept_rows"]


@dataclass(frozen=True, slots=True)
class Batch:
    """The tokens that one pass appends to several sequences, concatenated in this order.

    Attributes:
        caches: One per sequence, made by the back-end that plans the batch.
        counts: New tokens of each sequence, at least 1.
        keeps: For each sequence, how many of its last tokens need the last layer's output.
        trees: Per sequence the token tree that its last tokens form, or None for a chain. None if all
            are chains.
    """

    caches: Sequence[RowCache]
    counts: Sequence[int]
    keeps: Sequence[int]
    trees: Sequence[Tree | None] | None = None

    @property
    def positions(self) -> list[int]:
        """The position of every token of the pass."""
        trees, found = self.trees or [None] * len(self.caches), list[int]()
        for cache, count, tree in zip(self.caches, self.counts, trees, strict=True):
            found += positions_of(cache.length, count, tree)
        return found

    @property
    def end(self) -> int:
        """Upper bound of the positions: the longest sequence after the pass."""
        each = zip(self.caches, self.counts, strict=True)
        return max(cache.length + count for cache, count in each)

    def append(self) -> None:
        """Declare the rows that the finished pass has written valid in their caches."""
        for cache, count in zip(self.caches, self.counts, strict=True):
            cache.append_to(cache.length + count)

    def kept(self, x: Tensor) -> Tensor:
        """Return the kept tokens' rows of ``x [tokens, …]``."""
        if sum(self.keeps) == x.shape[0]:
            return x
        parts = zip(x.split_with_sizes(list(self.counts)), self.keeps, strict=True)
        each = [part[part.shape[0] - keep :] for part, keep in parts]
        return each[0] if len(each) == 1 else torch.cat(each)


def kept_rows(counts: Sequence[int], keeps: Sequence[int]) -> list[int]:
    """Return the rows of the kept tokens in a pass: the last ``keeps[i]`` of each ``counts[i]``."""
    stops = zip(accumulate(counts), keeps, strict=True)
    return [row for stop, keep in stops for row in range(stop - keep, stop)]


@dataclass(frozen=True, slots=True)
class Ragged:
    """The places of N sequences' T queries and their keys; tensors on the device.

    Attributes:
        query_starts: ``[N + 1]`` int32, cumulative numbers of queries.
        key_starts: ``[N + 1]`` int32, each sequence's first row in the pool; the last entry is unused.
        key_counts: ``[N]`` int32, rows of each sequence, those of this pass included.
        limits: ``[T]`` int32: a query sees the rows of its sequence before this one.
        nodes: ``[T]`` int64: a query also sees row ``limits + j`` of its sequence if bit j is set, the
            nodes of a token tree on the query's path. None: all sequences are chains, and the last
            query of a sequence sees all its rows, the query before it one less, and so on.
        max_queries: Upper bound of the number of a sequence's queries.
        max_keys: Upper bound of ``key_counts``.
    """

    query_starts: Tensor
    key_starts: Tensor
    key_counts: Tensor
    limits: Tensor
    nodes: Tensor | None
    max_queries: int
    max_keys: int


class AttentionPlan(ABC):
    """The attention of one pass: its indices, masks and views.

    Attributes:
        positions: ``[tokens]`` int64, each token's position.
    """

    positions: Tensor

    @abstractmethod
    def forward(self, layer: int, queries: Tensor, kv: Tensor) -> Tensor:
        """Write the new keys and values of a layer; let the queries attend to their sequences' rows.

        Args:
            layer: Index of the layer.
            queries: ``[n, heads, head_dim]``, rotated; n tokens, or the kept ones after `narrow`.
            kv: ``[tokens, 2 * kv_heads, head_dim]``: rotated keys, then values. They are one tensor so
                that one copy writes both.

        Returns:
            ``[n, heads * head_dim]``.
        """

    @abstractmethod
    def narrow(self) -> slice | Tensor:
        """Expect queries of the kept tokens only from now on; return their rows in the pass."""


class AttentionBackend(ABC):
    """A layout of keys and values, with the attention over it."""

    @abstractmethod
    def new_cache(self, fixed_capacity: int | None = None) -> RowCache:
        """Make an empty cache for one sequence.

        With ``fixed_capacity`` every pass reads that many rows, so that all passes sum in one order.
        """

    @property
    def free_bytes(self) -> int | None:
        """Unused bytes of the pool; None if each cache allocates its own memory."""
        return None

    @abstractmethod
    def plan(self, batch: Batch) -> AttentionPlan:
        """Reserve the cache rows of a pass, and prepare its indices and masks."""
