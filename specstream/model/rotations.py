"""Looks up the rotary angles of a pass."""

from __future__ import annotations

import torch
from torch import Tensor

from specstream.model.attention.base import Batch
from specstream.model.transfer import to_device
from specstream.model.tree import positions_of
from specstream.model.weights import RotaryTable

__all__ = ["positions", "rotations"]


def rotations(rotary: RotaryTable, batch: Batch, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosines and signed sines of every token's position, ``[N, 1, head_dim]`` each."""
    found = positions(batch)
    cos, sin = rotary.upto(max(found) + 1)
    rows = to_device(found, device)
    return cos.index_select(0, rows).unsqueeze(1), sin.index_select(0, rows).unsqueeze(1)


def positions(batch: Batch) -> list[int]:
    """Return the position of every token of a pass."""
    trees, found = batch.trees or [None] * len(batch.caches), list[int]()
    for cache, count, tree in zip(batch.caches, batch.counts, trees, strict=True):
        found += positions_of(cache.length, count, tree)
    return found
