"""Keys and values of one sequence in one tensor, for the lean forward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specstream.model.cache import KVCache

__all__ = ["SlabCache"]

_FIRST_CAPACITY = 256


class SlabCache(KVCache):
    """All layers of a sequence side by side: ``[layers, 2, kv_heads, capacity, head_dim]``.

    One tensor, so that a pass cuts the views of every layer at once; a head's rows stand behind each
    other, as attention reads them. Grows by doubling, unless its capacity is ``fixed``.
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
        self._length = 0
        self._written = 0  # rows that may hold something, in use or taken back
        self._rows: tuple[Tensor, ...] | None = None
        self.fixed_capacity = fixed_capacity
        # Zeros, not empty: a hidden row still takes part in sums, and 0 times NaN is NaN.
        self._slab = torch.zeros(
            (layers, 2, kv_heads, fixed_capacity or _FIRST_CAPACITY, head_dim),
            dtype=dtype,
            device=device,
        )

    @property
    def length(self) -> int:
        """Valid rows. A pass that was interrupted has added none."""
        return self._length

    def rollback_to(self, length: int) -> None:
        """Keep the first ``length`` rows; see `KVCache.rollback_to`."""
        self._check(length)
        self._length = length

    def _move_rows(self, start: int, path: Sequence[int]) -> None:
        rows = torch.tensor([start + node for node in path], device=self._slab.device)
        self._slab[:, :, :, start : start + len(path)] = self._slab.index_select(3, rows)

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        return self._slab.nbytes

    def views(self, count: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """For each layer: where to write ``count`` more rows, and what attention then reads.

        The first are ``[count, 2, kv_heads, head_dim]``: keys, then values. The second are two a
        layer, its keys and its values, ``[1, kv_heads, shown, head_dim]``, with all rows in use (with
        a fixed capacity: all there are). `extend` makes the rows count.
        """
        at, end = self._length, self._length + count
        self.reserve(end)
        shown = self.fixed_capacity or end
        return (
            self._slab[:, :, :, at:end].permute(0, 3, 1, 2, 4).unbind(),
            self._slab[:, :, :, :shown].flatten(0, 1).unsqueeze(1).unbind(),
        )

    def rows(self, end: int) -> tuple[Tensor, ...]:
        """For each layer all its keys, then all its values: ``[kv_heads, capacity, head_dim]``.

        With room for at least ``end`` rows. For a pass that finds its own place in them.
        """
        self.reserve(end)
        if self._rows is None:
            self._rows = self._slab.flatten(0, 1).unbind()
        return self._rows

    def reserve(self, end: int) -> None:
        """Make room for ``end`` rows, which are about to be written."""
        self._written = max(self._written, end)
        if end > self._slab.shape[3]:
            self._grow(end)

    def clear_hidden(self) -> None:
        """Zero what was taken back: for a pass that hides rows, since 0 times NaN is NaN."""
        if self._written > self._length:
            self._slab[:, :, :, self._length : self._written].zero_()
            self._written = self._length

    def lives_in(self, slab: Tensor) -> bool:
        """Whether its rows are kept in this tensor."""
        return self._slab is slab

    def move(self, slab: Tensor) -> None:
        """Keep the rows in ``slab`` from now on, which has room for them and the same other sizes."""
        slab[:, :, :, : self._length] = self._slab[:, :, :, : self._length]
        self._slab, self._rows = slab, None
        self._written = slab.shape[3]  # whatever was there before

    def move_out(self) -> None:
        """Keep the rows in a tensor of its own again, no larger than need be."""
        layers, two, heads, _, dim = self._slab.shape
        capacity = _FIRST_CAPACITY
        while capacity < self._length:
            capacity *= 2
        self.move(self._slab.new_zeros(layers, two, heads, capacity, dim))

    def extend(self, count: int) -> None:
        """The pass is complete: its rows are valid."""
        self._length += count

    def _grow(self, needed: int) -> None:
        if self.fixed_capacity is not None:
            raise ValueError(f"a cache of {self.fixed_capacity} rows can't hold {needed}")
        layers, two, heads, capacity, dim = self._slab.shape
        # Doubling: copying stays amortised O(1) a token.
        larger = self._slab.new_zeros(layers, two, heads, max(needed, 2 * capacity), dim)
        self.move(larger)
