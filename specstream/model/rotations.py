"""The rotary angles of a pass."""

from __future__ import annotations

import torch
from torch import Tensor

from specstream.model.attention.base import Batch
from specstream.model.transfer import to_device
from specstream.model.tree import positions_of
from specstream.model.weights import RotaryTable

__all__ = ["rotations"]


def rotations(rotary: RotaryTable, batch: Batch, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines of every token's position, ``[N, 1, head_dim]`` each."""
    each = zip(batch.caches, batch.counts, strict=True)
    if batch.trees is None:
        spans = [slice(cache.length, cache.length + count) for cache, count in each]
        cos, sin = rotary.upto(max(span.stop for span in spans))
        return (
            _joined([cos[span] for span in spans]).unsqueeze(1),
            _joined([sin[span] for span in spans]).unsqueeze(1),
        )
    positions = list[int]()
    for (cache, count), tree in zip(each, batch.trees, strict=True):
        positions += positions_of(cache.length, count, tree)
    cos, sin = rotary.upto(max(positions) + 1)
    rows = to_device(positions, device)
    return cos.index_select(0, rows).unsqueeze(1), sin.index_select(0, rows).unsqueeze(1)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
