"""Attention of drafting rows, which no cache keeps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specstream.model.attention.base import AttentionPlan
from specstream.model.attention.heads import Heads
from specstream.model.kv.contiguous import ContiguousCache

__all__ = ["FleetingPlan", "folded_mask"]


class FleetingPlan(AttentionPlan):
    """Rows whose keys and values are stored behind each sequence's own, and never declared valid.

    So the next pass overwrites them.

    Args:
        heads: Sizes of attention.
        caches: The sequences' caches.
        ends: How many rows each cache has before the new ones.
        counts: The number of new rows of each sequence.
        masks: Each sequence's `folded_mask`, for all layers.

    Attributes:
        asked: For each sequence, which of its new rows have queries.
    """

    def __init__(
        self,
        heads: Heads,
        caches: Sequence[ContiguousCache],
        ends: Sequence[int],
        counts: Sequence[int],
        masks: Sequence[Tensor] = (),
    ) -> None:
        self._heads, self._masks = heads, masks
        self._ends, self._counts = ends, list(counts)
        spans = zip(caches, ends, counts, strict=True)
        self._layers = [cache.layer_rows(end + count) for cache, end, count in spans]
        self.asked = [range(count) for count in counts]

    def narrow(self) -> slice | Tensor:
        """See `AttentionPlan.narrow`: all new rows are kept."""
        return slice(None)

    def mask(self, layer: int, number: int) -> Tensor | None:
        """The `folded_mask` of a layer for the sequence ``number``; None: its queries see all rows."""
        return self._masks[number]

    def forward(self, layer: int, queries: Tensor, kv: Tensor) -> Tensor:
        """See `AttentionPlan.forward`."""
        heads, mixed = self._heads, list[Tensor]()
        asked = queries.split_with_sizes([len(each) for each in self.asked])
        each = zip(asked, kv.split_with_sizes(self._counts), strict=True)
        for number, (some, new) in enumerate(each):
            end, stop = self._ends[number], self._ends[number] + self._counts[number]
            keys, values = self._layers[number][2 * layer : 2 * layer + 2]
            keys[:, end:stop] = new[:, : heads.keys].transpose(0, 1)
            values[:, end:stop] = new[:, heads.keys :].transpose(0, 1)
            shown = keys[:, :stop].unsqueeze(0), values[:, :stop].unsqueeze(0)
            mixed.append(heads.attend_few(some, *shown, self.mask(layer, number)))
        return torch.cat(mixed)


def folded_mask(seen: Tensor, heads: Heads, dtype: torch.dtype) -> Tensor:
    """The mask for `Heads.attend_few`: 0 where a query sees a row, in ``seen [n, rows]``, else -inf."""
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return mask.masked_fill_(~seen, -torch.inf).repeat_interleave(heads.group, 0)
