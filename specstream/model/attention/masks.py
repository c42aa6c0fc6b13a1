"""Additive attention masks: 0 where a query may attend, else minus infinity."""

from __future__ import annotations

import torch
from torch import Tensor

from specstream.model.tree import Tree

__all__ = ["SHORT", "Masks"]

SHORT = 64  # largest number of queries whose heads are folded, see `Heads.fold`
_STORED = 8192  # rows before the queries up to which one mask per number of queries is stored


class Masks:
    """Makes masks in the shape that `Heads` wants: one row per folded head for up to `SHORT` queries."""

    def __init__(self, group: int, dtype: torch.dtype, device: torch.device) -> None:
        self.device = device
        self._group, self._dtype = group, dtype
        self._causal: dict[int, Tensor] = {}

    def causal(self, count: int, before: int, fixed_capacity: int | None) -> Tensor | None:
        """Return the causal mask ``[count * group, rows]`` of ``count`` queries behind ``before`` rows.

        For more than `SHORT` queries ``[count, rows]``. None if no mask is needed or the kernel's own
        causal mask suffices.
        """
        folds = self._group if count <= SHORT else 1
        if fixed_capacity is not None:
            limits = torch.arange(before, before + count, device=self.device).unsqueeze(1)
            seen = torch.arange(fixed_capacity, device=self.device) <= limits
            return self.additive(seen).repeat_interleave(folds, 0)
        if count == 1 or (count > SHORT and before == 0):
            return None
        if count > SHORT:
            return self._triangle(count, before)
        if before > _STORED:
            return self._triangle(count, before).repeat_interleave(folds, 0)
        # One stored mask (zeros, then a triangle) serves any `before`: cut as many leading zeros off.
        stored = self._causal.get(count)
        if stored is None or stored.shape[1] < before + count:
            room = max(512, 2 * before)
            stored = self._triangle(count, room).repeat_interleave(folds, 0)
            self._causal[count] = stored
        return stored[:, stored.shape[1] - before - count :]

    def tree(self, tree: Tree, count: int, before: int, fixed_capacity: int | None) -> Tensor:
        """As `causal` if the last queries are a tree's nodes, which attend to their ancestors only."""
        folds = self._group if count <= SHORT else 1
        seen = tree.seen_behind(before, count, fixed_capacity or before + count, self.device)
        return self.additive(seen).repeat_interleave(folds, 0)

    def _triangle(self, count: int, before: int) -> Tensor:
        shape = (count, before + count)
        return self.additive(torch.ones(shape, dtype=torch.bool, device=self.device).tril_(before))

    def additive(self, seen: Tensor) -> Tensor:
        """Return a mask of the shape of ``seen`` (bool): 0 where it is True, else minus infinity."""
        zeros = torch.zeros(seen.shape, dtype=self._dtype, device=seen.device)
        return zeros.masked_fill_(~seen, -torch.inf)
