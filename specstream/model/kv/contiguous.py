"""A contiguous key-value cache: all rows of one sequence in one tensor of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specstream.model.kv.base import FIRST_CAPACITY, RowCache
from specstream.model.transfer import to_device

__all__ = ["ContiguousCache"]


class ContiguousCache(RowCache):
    """One tensor for all layers: ``[layers, 2, kv_heads, capacity, head_dim]``, keys before values.

    With one tensor a pass makes the views of all layers at once. The rows of a head are adjacent, in
    the order in which attention reads them. Grows by doubling, unless the capacity is fixed.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        fixed_capacity: int | None = None,
    ) -> None:
        super().__init__()
        self.fixed_capacity = fixed_capacity
        self._layer_rows: tuple[Tensor, ...] | None = None
        # Zeros, not empty: a masked row still enters sums with weight 0, and 0 times NaN is NaN.
        self._kv = torch.zeros(
            (layers, 2, kv_heads, fixed_capacity or FIRST_CAPACITY, head_dim),
            dtype=dtype,
            device=device,
        )

    @property
    def nbytes(self) -> int:
        """Allocated memory, in bytes."""
        return self._kv.nbytes

    def views(self, count: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return views for a pass of ``count`` tokens: the rows to write, and those attention reads.

        Returns:
            Per layer ``[count, 2, kv_heads, head_dim]`` for the new rows (keys, then values); and per
            layer two tensors, keys and values, ``[1, kv_heads, rows, head_dim]``, up to the last new
            row or the fixed capacity.
        """
        start, end = self._length, self._length + count
        self.reserve(end)
        shown = self.fixed_capacity or end
        return (
            self._kv[:, :, :, start:end].permute(0, 3, 1, 2, 4).unbind(),
            self._kv[:, :, :, :shown].flatten(0, 1).unsqueeze(1).unbind(),
        )

    def storage(self, rows: int) -> Tensor:
        """Return the tensor of all rows, see the class; its capacity is at least ``rows``."""
        self.reserve(rows)
        return self._kv

    def layer_rows(self, rows: int) -> tuple[Tensor, ...]:
        """Per layer keys, then values: ``[kv_heads, capacity, head_dim]``, capacity >= ``rows``."""
        self.reserve(rows)
        if self._layer_rows is None:
            self._layer_rows = self._kv.flatten(0, 1).unbind()
        return self._layer_rows

    def reserve(self, rows: int) -> None:
        """See `RowCache.reserve`.

        Raises:
            ValueError: more rows than the fixed capacity.
        """
        layers, two, heads, capacity, dim = self._kv.shape
        if rows <= capacity:
            return
        if self.fixed_capacity is not None:
            raise ValueError(f"a cache of {capacity} rows can't hold {rows}")
        # Doubling: copying stays amortised O(1) per token.
        larger = self._kv.new_zeros(layers, two, heads, max(rows, 2 * capacity), dim)
        larger[:, :, :, : self._length] = self._kv[:, :, :, : self._length]
        self._kv, self._layer_rows = larger, None

    def _copy_rows(self, other: ContiguousCache, rows: int) -> None:
        self.reserve(rows)
        self._kv[:, :, :, :rows] = other._kv[:, :, :, :rows]
        self.append_to(rows)

    def _move_rows(self, start: int, path: Sequence[int]) -> None:
        rows = to_device([start + node for node in path], self._kv.device)
        self._kv[:, :, :, start : start + len(path)] = self._kv.index_select(3, rows)
