"""Attention of several sequences in one call."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specstream.model.attention import Heads, Masks
from specstream.model.lanes import MOST_LANES, Lanes, Seats
from specstream.model.slab import SlabCache
from specstream.model.transfer import to_device

__all__ = ["Together"]

_FEW = 16  # tokens of a sequence that may share a call
_CROWD = 8  # sequences from which on this costs a CPU less than one call each
_WASTE = 1.5  # times what is needed that may be computed


class Together:
    """The first sequences of a pass, whose caches are lanes of one tensor, all read to one end.

    Raggedness costs: a lane with fewer queries than another is filled up with copies, and rows beyond
    a lane's own are hidden.

    Attributes:
        count: How many sequences.
        rows: Of the pass that are theirs.
    """

    def __init__(
        self, heads: Heads, masks: Masks, seats: Seats, ats: Sequence[int], counts: Sequence[int]
    ) -> None:
        self._heads, self._masks, self._parts = heads, masks, heads.parts
        self._seats = seats
        self._ats, self._counts = ats, counts
        self.count, self.rows = len(counts), sum(counts)
        self._shown_rows = max(at + count for at, count in zip(ats, counts, strict=True))
        low, high = min(seats.lanes), max(seats.lanes) + 1
        shown = seats.pool[:, :, low:high, :, : self._shown_rows]
        self._shown = shown.flatten(0, 1).unbind()
        self._written = seats.places(ats, counts)
        self.ask(counts)

    @classmethod
    def of(
        cls,
        heads: Heads,
        masks: Masks,
        lanes: Lanes,
        caches: Sequence[SlabCache],
        counts: Sequence[int],
    ) -> Together | None:
        """As many of the first sequences as have few tokens; None where one by one costs less."""
        few, most = 0, min(len(counts), MOST_LANES)
        while few < most and counts[few] <= _FEW and caches[few].fixed_capacity is None:
            few += 1
        ats, counts = [cache.length for cache in caches[:few]], counts[:few]
        ends = [at + count for at, count in zip(ats, counts, strict=True)]
        if few < (_CROWD if lanes.device.type == "cpu" else 2):
            return None
        if any(few * max(sizes) > _WASTE * sum(sizes) for sizes in (ends, counts)):
            return None
        seats = lanes.seat(caches[:few], ends)
        if seats is None or max(seats.lanes) - min(seats.lanes) >= _WASTE * few:
            return None
        return cls(heads, masks, seats, ats, counts)

    def ask(self, keeps: Sequence[int]) -> None:
        """See `Reader.ask`."""
        lanes, most = self._seats.lanes, max(keeps)
        low, high = min(lanes), max(lanes) + 1
        # A lane that is nobody's is computed, of any query, and not looked at.
        places, seen = [[0] * most] * (high - low), [[0] * most] * (high - low)
        kept, laid, stop = list[int](), list[int](), 0
        for lane, at, count, keep in zip(lanes, self._ats, self._counts, keeps, strict=True):
            steps = [min(step, keep - 1) for step in range(most)]
            places[lane - low] = [len(kept) + step for step in steps]
            seen[lane - low] = [at + count - keep + step for step in steps]
            stop += count
            kept += range(stop - keep, stop)
            laid += range((lane - low) * most, (lane - low) * most + keep)
        self.kept = slice(0, stop) if len(kept) == stop else self._tensor(kept)
        self._mask = self._masks.upto(self._tensor(seen), self._shown_rows)
        wanted = [kept[place] for row in places for place in row]
        self._places = self._tensor(wanted) if wanted != list(range(stop)) else None
        self._laid = self._tensor(laid) if laid != list(range(len(wanted))) else None

    def attend(self, index: int, joint: Tensor) -> Tensor:
        """See `Reader.attend`."""
        queries, written = joint.split_with_sizes(self._parts, 1)
        flat = written.reshape(-1, self._heads.dim)
        self._seats.flat[index].index_copy_(0, self._written, flat)
        if self._places is not None:
            queries = queries.index_select(0, self._places)
        keys, values = self._shown[2 * index], self._shown[2 * index + 1]
        mixed = self._heads.read(queries, keys, values, self._mask)
        return mixed if self._laid is None else mixed.index_select(0, self._laid)

    def _tensor(self, values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return to_device(values, self._seats.pool.device)
