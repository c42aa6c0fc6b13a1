"""Grouped-query attention of one sequence over its own keys and values.

For few queries, the query heads that share a key head are folded into the rows of one matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

__all__ = ["Heads"]


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

    def attend_few(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Attention of few queries, with folded heads; ``mask`` is folded, too."""
        folded = self.fold(queries)
        return self.unfold(F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask))

    def attend_many(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
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
