"""Key-value caches, which can be rolled back to any position: of one sequence, and in a pool of many."""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from specstream.model.numerics import to_device
from specstream.model.weights import DecoderWeights

__all__ = [
    "FIRST_CAPACITY",
    "ContiguousCache",
    "KVCache",
    "KVPool",
    "PoolSlot",
    "PooledCache",
    "RowCache",
    "common_prefix",
    "rows_in_free_memory",
]

FIRST_CAPACITY = 256
"""Rows that a growing cache allocates first."""


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the longest common prefix: how many rows of a text's cache fit another text."""
    same, most = 0, min(len(a), len(b))
    while same < most:  # by halves: lists are compared at once
        middle = (same + most + 1) // 2
        if list(a[same:middle]) == list(b[same:middle]):
            same = middle
        else:
            most = middle - 1
    return same


class KVCache(ABC):
    """Keys and values of one sequence, for every layer of one model.

    ``length`` rows are valid. A pass appends rows; `rollback_to` discards the last ones in O(1).
    """

    @property
    @abstractmethod
    def length(self) -> int:
        """Number of valid rows: those that every layer has."""

    @abstractmethod
    def rollback_to(self, length: int) -> None:
        """Keep the first ``length`` rows. The number is absolute, so a second call changes nothing.

        Raises:
            ValueError: ``length`` is negative or exceeds the valid rows.
        """

    def keep_path(self, start: int, path: Sequence[int]) -> None:
        """Of a token tree's rows keep those of one path, moved together; discard the others.

        Afterwards ``length`` is ``start + len(path)``.

        Args:
            start: Row of the tree's first node.
            path: Increasing node numbers; node j has row ``start + j``.

        Raises:
            ValueError: a row that is not valid, or nodes out of order.
        """
        self._check(start + 1 + max(path, default=-1))
        if any(later <= earlier for earlier, later in pairwise(path)):
            raise ValueError(f"the nodes of a path come in order: {tuple(path)}")
        if list(path) != list(range(len(path))):
            self._move_rows(start, path)
        self.rollback_to(start + len(path))

    def begin_as(self, other: Self, rows: int) -> None:
        """Become a copy of the first ``rows`` rows of another sequence's cache of the same model.

        Raises:
            ValueError: the other cache has fewer valid rows.
            torch.OutOfMemoryError: no memory for the copy; this cache is then empty.
        """
        other._check(rows)
        self.rollback_to(0)
        if rows:
            self._copy_rows(other, rows)

    @abstractmethod
    def _copy_rows(self, other: Self, rows: int) -> None:
        """Copy the first rows of every layer; this cache is empty."""

    @abstractmethod
    def _move_rows(self, start: int, path: Sequence[int]) -> None:
        """Copy row ``start + path[i]`` of every layer to ``start + i``."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Allocated memory, in bytes."""

    def _check(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError(f"can't roll back to {length}: {self.length} rows are valid")


class RowCache(KVCache):
    """A cache for `Decoder`: a pass reserves rows, writes them, then declares them valid.

    Attributes:
        fixed_capacity: Rows that every pass reads, valid or not; None: a pass reads the valid rows.
    """

    fixed_capacity: int | None = None

    def __init__(self) -> None:
        self._length = 0

    @property
    def length(self) -> int:
        """Number of valid rows. A pass that was interrupted has added none."""
        return self._length

    def rollback_to(self, length: int) -> None:
        """Keep the first ``length`` rows; see `KVCache.rollback_to`."""
        self._check(length)
        self._length = length

    @abstractmethod
    def reserve(self, rows: int) -> None:
        """Allocate memory for ``rows`` rows in total; valid rows keep their values."""

    def append_to(self, length: int) -> None:
        """Declare the first ``length`` rows written and valid. Absolute, like `rollback_to`."""
        self._length = length


_LINE = 64  # bytes of a cache line: loading a register from two lines takes twice as long


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
        shape = (layers, 2, kv_heads, fixed_capacity or FIRST_CAPACITY, head_dim)
        self._kv = _zeros(shape, dtype, device)

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
        shape = (layers, two, heads, max(rows, 2 * capacity), dim)
        larger = _zeros(shape, self._kv.dtype, self._kv.device)
        _bits(larger)[:, :, :, : self._length] = _bits(self._kv)[:, :, :, : self._length]
        self._kv, self._layer_rows = larger, None

    def _copy_rows(self, other: ContiguousCache, rows: int) -> None:
        self.reserve(rows)
        _bits(self._kv)[:, :, :, :rows] = _bits(other._kv)[:, :, :, :rows]
        self.append_to(rows)

    def _move_rows(self, start: int, path: Sequence[int]) -> None:
        rows, kv = [start + node for node in path], _bits(self._kv)
        at = rows if isinstance(kv, np.ndarray) else to_device(rows, kv.device)
        kv[:, :, :, start : start + len(path)] = kv[:, :, :, at]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, not empty: a masked row still enters sums with weight 0, and 0 times NaN is NaN.

    On a CPU by numpy, which takes memory that the system hands out as zeros; see also `_bits`.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    raw = np.zeros(size + _LINE, np.uint8)
    start = -raw.ctypes.data % _LINE
    return torch.from_numpy(raw[start : start + size]).view(dtype).view(shape)


def _bits(kv: Tensor) -> Any:
    """What copies of rows are made in: on a CPU numpy's view of their bits, as integers.

    torch copies with all of its threads, which then spin for milliseconds on cores that passes need.
    """
    if kv.device.type != "cpu":
        return kv
    return kv.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[kv.itemsize]).numpy()


_MOST_ROWS = 2**20  # of a pool, however much memory is free
FIRST_ROWS = FIRST_CAPACITY
"""Of a sequence's first slot; then slots double if memory allows."""


def rows_in_free_memory(weights: DecoderWeights, share: float) -> int:
    """Return how many rows of this model fit into a pool's share of the GPU's free memory.

    Loading leaves memory behind that torch's allocator keeps and the device counts as used, such as the
    matrices that were joined: for a model of 8 billion parameters 10 GB.
    """
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(weights.device)
    return min(int(free * share) // weights.kv_bytes, _MOST_ROWS)


@dataclass(slots=True)
class PoolSlot:
    """Adjacent rows of the pool that belong to one sequence."""

    start: int = 0
    rows: int = 0


class KVPool:
    """A tensor ``kv [layers, 2, rows, kv_heads, head_dim]``, divided into slots of adjacent rows.

    Its address never changes. `take` is first fit: it uses the first free range that is large enough.
    Released rows are merged with free neighbours.
    """

    def __init__(self, weights: DecoderWeights, rows: int) -> None:
        w = weights
        self.rows = rows
        self.row_bytes = w.kv_bytes
        with torch.inference_mode(False):
            self.kv = torch.zeros(
                (len(w.layers), 2, rows, w.kv_heads, w.head_dim), dtype=w.dtype, device=w.device
            )
            # Views of each layer: keys and values together, keys, values.
            self.layers = [(both, both[0], both[1]) for both in self.kv]
        self._free = [PoolSlot(0, rows)] if rows else []
        self._returned: deque[PoolSlot] = deque()  # released slots: finalizers may run on any thread

    def take(self, wanted: int, least: int) -> PoolSlot:
        """Return a slot of ``wanted`` adjacent rows, or of ``least`` if no free range has as many.

        Raises:
            torch.OutOfMemoryError: no free range of ``least`` rows.
        """
        self._collect()
        for rows in (wanted, least):
            for free in self._free:
                if free.rows >= rows:
                    taken = PoolSlot(free.start, rows)
                    free.start, free.rows = free.start + rows, free.rows - rows
                    return taken
        raise torch.OutOfMemoryError(
            f"the key-value pool of {self.rows} rows has no {least} adjacent free rows"
        )

    def release(self, slot: PoolSlot) -> None:
        """Give a slot's rows back. May be called from any thread."""
        self._returned.append(PoolSlot(slot.start, slot.rows))

    @property
    def free_rows(self) -> int:
        """Rows that belong to no sequence."""
        self._collect()
        return sum(free.rows for free in self._free)

    def _collect(self) -> None:
        while self._returned:
            self._free.append(self._returned.popleft())
        self._free.sort(key=lambda slot: slot.start)
        merged: list[PoolSlot] = []
        for slot in self._free:
            if merged and merged[-1].start + merged[-1].rows == slot.start:
                merged[-1].rows += slot.rows
            elif slot.rows:
                merged.append(slot)
        self._free = merged


class PooledCache(RowCache):
    """One sequence's slot of a `KVPool`; moves to a larger slot as the sequence grows.

    Attributes:
        pool: As given.
        slot: Its rows in the pool.
    """

    def __init__(self, pool: KVPool) -> None:
        super().__init__()
        self.pool, self.slot = pool, PoolSlot()
        weakref.finalize(self, pool.release, self.slot)

    @property
    def nbytes(self) -> int:
        """Memory of the slot, in bytes."""
        return self.slot.rows * self.pool.row_bytes

    def reserve(self, rows: int) -> None:
        """See `RowCache.reserve`.

        Raises:
            torch.OutOfMemoryError: the pool is full.
        """
        slot = self.slot
        if rows <= slot.rows:
            return
        larger = self.pool.take(max(FIRST_ROWS, 2 * slot.rows, rows), rows)
        kv, length = self.pool.kv, self._length
        if length:
            kv[:, :, larger.start : larger.start + length] = kv[:, :, slot.start : slot.start + length]
        if slot.rows:
            self.pool.release(slot)
        slot.start, slot.rows = larger.start, larger.rows

    def _copy_rows(self, other: PooledCache, rows: int) -> None:
        self.reserve(rows)
        kv, to, source = self.pool.kv, self.slot.start, other.slot.start
        kv[:, :, to : to + rows] = kv[:, :, source : source + rows]
        self.append_to(rows)

    def _move_rows(self, start: int, path: Sequence[int]) -> None:
        kv, first = self.pool.kv, self.slot.start + start
        rows = to_device([first + node for node in path], kv.device)
        kv[:, :, first : first + len(path)] = kv.index_select(2, rows)
