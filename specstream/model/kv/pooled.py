"""A key-value pool: one tensor with the rows of many sequences, so that one kernel call reads all."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specstream.model.kv.base import FIRST_CAPACITY, RowCache
from specstream.model.numerics import to_device
from specstream.model.weights import DecoderWeights

__all__ = ["KVPool", "PoolSlot", "PooledCache", "rows_in_free_memory"]

_MOST_ROWS = 2**20  # of a pool, however much memory is free
_FIRST_ROWS = FIRST_CAPACITY  # of a sequence's first slot; then slots double if memory allows


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
        self._returned: deque[PoolSlot] = (
            deque()
        )  # released slots: finalizers may run on any thread

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
    """One sequence's slot of a `KVPool`; moves to a larger slot as the sequence grows."""

    def __init__(self, pool: KVPool) -> None:
        super().__init__()
        self._pool, self.slot = pool, PoolSlot()
        weakref.finalize(self, pool.release, self.slot)

    @property
    def nbytes(self) -> int:
        """Memory of the slot, in bytes."""
        return self.slot.rows * self._pool.row_bytes

    def reserve(self, rows: int) -> None:
        """See `RowCache.reserve`.

        Raises:
            torch.OutOfMemoryError: the pool is full.
        """
        slot = self.slot
        if rows <= slot.rows:
            return
        larger = self._pool.take(max(_FIRST_ROWS, 2 * slot.rows, rows), rows)
        kv, length = self._pool.kv, self._length
        if length:
            kv[:, :, larger.start : larger.start + length] = kv[
                :, :, slot.start : slot.start + length
            ]
        if slot.rows:
            self._pool.release(slot)
        slot.start, slot.rows = larger.start, larger.rows

    def _copy_rows(self, other: PooledCache, rows: int) -> None:
        self.reserve(rows)
        kv, to, source = self._pool.kv, self.slot.start, other.slot.start
        kv[:, :, to : to + rows] = kv[:, :, source : source + rows]
        self.append_to(rows)

    def _move_rows(self, start: int, path: Sequence[int]) -> None:
        kv, first = self._pool.kv, self.slot.start + start
        rows = to_device([first + node for node in path], kv.device)
        kv[:, :, first : first + len(path)] = kv.index_select(2, rows)
