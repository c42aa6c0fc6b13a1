"""Caches of several sequences side by side in one tensor, so that one call can read them all."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specstream.model.slab import SlabCache
from specstream.model.transfer import to_device
from specstream.model.weights import DecoderWeights

__all__ = ["MOST_LANES", "Lanes", "Seats"]

_FIRST_LANES, MOST_LANES = 4, 16
_FIRST_ROWS = 512
_BYTES = 2 * 2**30  # that all lanes may take together
_IDLE = 64  # shared passes after which a sequence that took no part may be moved out


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
        self.holder, self.used = weakref.ref(cache), used
        cache.move(self.slab)  # last: whoever lives here is known, whatever interrupts this


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
        return (to_device(first, device).unsqueeze(1) + steps.view(-1)).view(-1)


class Lanes:
    """Lanes of one tensor, which a sequence enters with the first pass that it shares with others.

    It stays until it is gone, or until its lane is wanted after it took no part for long. The number
    of lanes, and the rows of each, double as they are needed, within a bound of memory.
    """

    def __init__(self, weights: DecoderWeights) -> None:
        self._weights = weights
        self._bound = _BYTES
        self._now = 0
        self._lanes: list[_Lane] = []
        self._pool, self._flat = self._allocate(0, 0)

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self._weights.device

    def seat(self, caches: Sequence[SlabCache], ends: Sequence[int]) -> Seats | None:
        """A lane for every sequence, which is about to be written up to its end, of ``ends`` rows.

        None where there are not as many lanes, or not the memory for them.
        """
        self._now += 1
        if not self._make_room(caches, max(ends)):
            return None
        seated = [
            self._move(cache, self._available()) if lane is None else lane
            for cache, lane in zip(caches, self._find(caches), strict=True)
        ]
        # What lies between the lanes of a pass is computed as well.
        while (highest := max(seated)) - min(seated) >= len(seated):
            lower = self._available()
            if lower > highest:
                break
            place = seated.index(highest)
            seated[place] = self._move(caches[place], lower)
        for cache, end in zip(caches, ends, strict=True):
            cache.clear_hidden()
            cache.reserve(end)
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

    def _is_available(self, number: int) -> bool:
        lane = self._lanes[number]
        return lane.cache() is None or self._now - lane.used > _IDLE

    def _available(self) -> int:
        """The first lane that can be had; ``len(lanes)`` if there is none."""
        lanes = range(len(self._lanes))
        return next(filter(self._is_available, lanes), len(self._lanes))

    def _move(self, cache: SlabCache, number: int) -> int:
        self._lanes[number].take(cache, self._now)
        return number

    def _make_room(self, caches: Sequence[SlabCache], rows: int) -> bool:
        """Lanes of enough rows for those who have none; False: there can't be."""
        lanes, capacity = len(self._lanes), self._pool.shape[4]
        found = self._find(caches)
        spare = sum(map(self._is_available, range(lanes)))
        if rows <= capacity and found.count(None) <= spare:
            return True
        more = 2 * lanes if found.count(None) > spare else lanes
        least = _doubled(_FIRST_LANES, len(caches)), _doubled(_FIRST_ROWS, rows)
        sizes = [(max(more, least[0]), max(capacity, least[1]))]
        if spare + len(caches) - found.count(None) == lanes:
            sizes.append(least)  # the others have been away for long
        for size in sizes:
            if size[0] <= MOST_LANES and self._bytes(*size) <= self._bound:
                return self._resize(*size)
        return False

    def _resize(self, lanes: int, capacity: int) -> bool:
        """Begin anew with so many lanes, all free; False where the memory isn't there."""
        for lane in self._lanes:
            if (cache := lane.cache()) is not None:
                cache.move_out()
        # The old ones go before the new ones come, so that the bound is one.
        self._lanes = []
        self._pool, self._flat = self._allocate(0, 0)
        try:
            self._pool, self._flat = self._allocate(lanes, capacity)
        except RuntimeError:  # sequences can be read one by one all the same
            self._bound = self._bytes(lanes, capacity) // 2
            return False
        self._lanes = [_Lane(slab) for slab in self._pool.unbind(2)]
        return True

    def _bytes(self, lanes: int, capacity: int) -> int:
        w = self._weights
        per_row = 2 * len(w.layers) * w.kv_heads * w.head_dim * w.dtype.itemsize
        return lanes * capacity * per_row

    @torch.inference_mode(False)
    def _allocate(self, lanes: int, capacity: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        w = self._weights
        shape = (len(w.layers), 2, lanes, w.kv_heads, capacity, w.head_dim)
        pool = torch.zeros(shape, dtype=w.dtype, device=w.device)
        return pool, pool.flatten(1, 4).unbind()


def _doubled(first: int, needed: int) -> int:
    """``first``, doubled until it is at least ``needed``."""
    while first < needed:
        first *= 2
    return first
