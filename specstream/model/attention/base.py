"""The seam between a decoder and its attention: planned once a pass, run in each layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specstream.model.kv.base import RowCache
from specstream.model.tree import Tree

__all__ = ["AttentionBackend", "AttentionPlan", "Batch"]


@dataclass(frozen=True, slots=True)
class Batch:
    """What one pass appends to several sequences; its tokens are concatenated in this order.

    Attributes:
        caches: One per sequence, made by the back-end that plans the batch.
        counts: New tokens of each sequence, at least 1.
        keeps: Of how many last tokens of each sequence the last layer's output is needed.
        trees: Per sequence the token tree that its last tokens form, or None for a chain; None where
            all are chains.
    """

    caches: Sequence[RowCache]
    counts: Sequence[int]
    keeps: Sequence[int]
    trees: Sequence[Tree | None] | None = None

    def kept(self, x: Tensor) -> Tensor:
        """Of ``x [tokens, …]`` the rows of the last `keeps` tokens of each sequence."""
        if sum(self.keeps) == x.shape[0]:
            return x
        parts = zip(x.split_with_sizes(list(self.counts)), self.keeps, strict=True)
        each = [part[part.shape[0] - keep :] for part, keep in parts]
        return each[0] if len(each) == 1 else torch.cat(each)


class AttentionPlan(ABC):
    """Attention of one pass."""

    @abstractmethod
    def forward(self, layer: int, queries: Tensor, kv: Tensor) -> Tensor:
        """Write the new keys and values of a layer and attend to all rows of each sequence.

        Args:
            layer: Index of the layer.
            queries: ``[n, heads, head_dim]``, rotated; n tokens, or the kept ones after `narrow`.
            kv: ``[tokens, 2 * kv_heads, head_dim]``: rotated keys, then values. One tensor, so that
                one copy writes both.

        Returns:
            ``[n, heads * head_dim]``.
        """

    @abstractmethod
    def narrow(self) -> slice | Tensor:
        """From now on queries are those of the kept tokens only; returns their rows of the pass."""


class AttentionBackend(ABC):
    """Keeps keys and values in one layout and attends to them."""

    @abstractmethod
    def new_cache(self, fixed_capacity: int | None = None) -> RowCache:
        """An empty cache for one sequence.

        With ``fixed_capacity`` every pass reads that many rows: sums then have one order.
        """

    @property
    def free_bytes(self) -> int | None:
        """Unused bytes of a pool; None where each cache allocates memory of its own."""
        return None

    @abstractmethod
    def plan(self, batch: Batch) -> AttentionPlan:
        """Reserve the rows of a pass and prepare indices and masks."""
