"""Caches of several sequences side by side in one tensor, so that one call can read them all."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specstream.model.slab import SlabCache
from specstream.model.transfer import sent
from specstream.model.weights import DecoderWeights

__all__ = ["Lanes", "Seats"]

_FIRST_LANES, _MOST_LANES = 4, 16
_FIRST_ROWS = 512
_BYTES = 2 * 2**30  # that all lanes may take together
_IDLE = 64  # shared passes after which a sequence that took no part may be moved out

_FREE, _RESTING, _BUSY, _PRESENT = 0, 1, 2, 3


@dataclass(slots=True)
class _Lane:
    """Room for one sequence: ``slab [layers, 2, kv_heads, capacity, head_dim]``."""

    slab: Tensor
    holder: weakref.ref[SlabCache] | None = None
    used: int = 0  # the last shared pass that it took part in

    def cache(self) -> SlabCache | None:
        """Who keeps its rows here; None: nobody."""
        cache = self.holder() if self.holder is not None else None
        return cache if cache is not None and cache.lives_in(self.slab) else None

    def take(self, cache: SlabCache, used: int) -> None:
        """Bring a sequence in; whoever was here leaves."""
        before = self.cache()
        if before is not None:
            before.move_out()
        cache.move(self.slab)
        self.holder, self.used = weakref.ref(cache), used


@dataclass(frozen=True, slots=True)
class Seats:
    """Where the sequences of a shared pass are.

    Attributes:
        pool: ``[layers, 2, lanes, kv_heads, capacity, head_dim]``.
        flat: Of each layer ``[2 * lanes * kv_heads * capacity, head_dim]``, the same memory.
        lanes: Each sequence's.
    """

    pool: Tensor
    flat: tuple[Tensor, ...]
    lanes: list[int]

    def places(self, ats: Sequence[int], counts: Sequence[int]) -> Tensor:
        """Where in ``flat`` the keys, then the values, of each sequence's next rows belong.

        ``[N * 2 * kv_heads]``, row by row.
        """
        _, two, lanes, heads, capacity, _ = self.pool.shape
        first = [
            lane * heads * capacity + row
            for lane, at, count in zip(self.lanes, ats, counts, strict=True)
            for row in range(at, at + count)
        ]
        device = self.pool.device
        sides = torch.arange(two, device=device).unsqueeze(1) * lanes * heads
        steps = (sides + torch.arange(heads, device=device)) * capacity
        return (sent(first, device).unsqueeze(1) + steps.view(-1)).view(-1)


class Lanes:
    """Lanes of one tensor, which a sequence enters with the first pass that it shares with others.

    It stays until it is gone, or until its lane is wanted after it took no part for long. The number
    of lanes, and the rows of each, double as they are needed.
    """

    def __init__(self, weights: DecoderWeights) -> None:
        self._weights = weights
        self._now = 0
        self._lanes: list[_Lane] = []
        self._pool, self._flat = self._allocate(0, 0)

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self._weights.device

    def seat(self, caches: Sequence[SlabCache], ends: Sequence[int]) -> Seats | None:
        """A lane with room for ``ends`` rows for every sequence.

        None, and nothing moves, where that would take more lanes or memory than there may be.
        """
        self._now += 1
        found = self._find(caches)
        if not self._make_room(found.count(None), len(caches), max(ends)):
            return None
        seated = [
            self._move(cache, self._best()) if lane is None else lane
            for cache, lane in zip(caches, self._find(caches), strict=True)
        ]
        # What lies between the lanes of a pass is computed as well.
        while (highest := max(seated)) - min(seated) >= len(seated):
            lower = next((n for n in range(highest) if self._rank(n) <= _RESTING), None)
            if lower is None:
                break
            place = seated.index(highest)
            seated[place] = self._move(caches[place], lower)
        for cache in caches:
            cache.clear_hidden()
        return Seats(self._pool, self._flat, seated)

    def _find(self, caches: Sequence[SlabCache]) -> list[int | None]:
        """The lanes of those that have one; they are in use now."""
        found: list[int | None] = []
        for cache in caches:
            for number, lane in enumerate(self._lanes):
                if cache.lives_in(lane.slab):
                    lane.used = self._now
                    found.append(number)
                    break
            else:
                found.append(None)
        return found

    def _rank(self, number: int) -> int:
        """How much a lane is needed by who is in it."""
        lane = self._lanes[number]
        if lane.cache() is None:
            return _FREE
        if lane.used == self._now:
            return _PRESENT
        return _BUSY if self._now - lane.used <= _IDLE else _RESTING

    def _best(self) -> int:
        """The lane that is given away next."""
        return min(range(len(self._lanes)), key=lambda number: (self._rank(number), number))

    def _move(self, cache: SlabCache, number: int) -> int:
        self._lanes[number].take(cache, self._now)
        return number

    def _make_room(self, missing: int, present: int, rows: int) -> bool:
        """Enough lanes of enough rows; False: that would be too much."""
        lanes, capacity = max(len(self._lanes), _FIRST_LANES), max(self._pool.shape[4], _FIRST_ROWS)
        if missing:
            spare = sum(self._rank(number) <= _RESTING for number in range(len(self._lanes)))
            if self._lanes and spare < missing:
                lanes *= 2
        while lanes < present:
            lanes *= 2
        while capacity < rows:
            capacity *= 2
        lanes = min(lanes, _MOST_LANES)
        if present > lanes:
            return False
        if (lanes, capacity) == (len(self._lanes), self._pool.shape[4]):
            return True
        if self._bytes(lanes, capacity) > _BYTES:
            return False
        self._grow(lanes, capacity)
        return True

    def _grow(self, lanes: int, capacity: int) -> None:
        old = self._lanes
        self._pool, self._flat = self._allocate(lanes, capacity)
        self._lanes = [_Lane(slab) for slab in self._pool.unbind(2)]
        for lane, larger in zip(old, self._lanes, strict=False):
            if (cache := lane.cache()) is not None:
                larger.take(cache, lane.used)

    def _bytes(self, lanes: int, capacity: int) -> int:
        w = self._weights
        per_row = 2 * len(w.layers) * w.kv_heads * w.head_dim * w.dtype.itemsize
        return lanes * capacity * per_row

    def _allocate(self, lanes: int, capacity: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        w = self._weights
        shape = (len(w.layers), 2, lanes, w.kv_heads, capacity, w.head_dim)
        pool = torch.zeros(shape, dtype=w.dtype, device=w.device)
        return pool, pool.flatten(1, 4).unbind()
