"""Finds out by trial whether drafting pays while many requests share each pass.

The cost model prices a draft by what it adds to a pass. Where many requests share one, the errors of its
estimates add up, and drafts that pay for one request make the others wait. So steps with and without
drafts are timed side by side, a few of each, and the better kind is taken.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["Load"]

_FEW = 8  # requests up to which drafts are left to the cost model
_WINDOW = 6  # steps of one kind in a row; the first is no sample: a draft has to catch up
# Windows of the better kind between two trials of the other, at first and at most.
_SOON, _LATE = 8, 64
_MARGIN = 1.02  # by which drafts must be faster
_MEMORY = 24  # steps


class _Size:
    """Steps of about so many requests."""

    def __init__(self) -> None:
        self._speed = {True: 0.0, False: 0.0}
        self._samples = {True: 0, False: 0}
        self._step = 0  # of the window
        self._windows = self._kinds()
        self.drafts = next(self._windows)

    def _kinds(self) -> Iterator[bool]:
        """Yield for each window whether its steps have drafts."""
        yield from (True, False, True, False)
        apart, before = _SOON, self._better
        while True:
            better = self._better
            apart = min(2 * apart, _LATE) if better == before else _SOON
            for _ in range(apart):
                yield better
            yield not better
            before = better

    @property
    def _better(self) -> bool:
        return self._speed[True] > _MARGIN * self._speed[False]

    @property
    def plain(self) -> float:
        """The speed of steps without drafts, 1 if it isn't known yet."""
        return self._speed[False] if self._samples[False] else 1.0

    def observe(self, speed: float) -> None:
        """Take the speed of a step of the kind that ``drafts`` names."""
        self._step += 1
        if self._step > 1:
            samples = self._samples[self.drafts] = min(self._samples[self.drafts] + 1, _MEMORY)
            self._speed[self.drafts] += (speed - self._speed[self.drafts]) / samples
        if self._step == _WINDOW:
            self._step, self.drafts = 0, next(self._windows)


class Load:
    """Whether drafts are made at all, by the number of requests in a step. No clock of its own."""

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}

    def drafts(self, requests: int) -> bool:
        """Whether the next step of so many requests may have drafts."""
        return requests <= _FEW or self._size(requests).drafts

    def observe(self, requests: int, tokens: int, ms: float, plain_ms: float) -> None:
        """Learn from a step as `drafts` said.

        Args:
            requests: Requests in it.
            tokens: Tokens that were committed.
            ms: Its duration.
            plain_ms: What one without drafts takes by estimate: makes sizes of one group comparable.
        """
        if requests > _FEW and ms > 0.0:
            self._size(requests).observe(tokens / requests * plain_ms / ms)

    def plain(self, requests: int) -> float:
        """By what factor steps without drafts were faster than the estimates; 1 if none was timed."""
        size = self._sizes.get(requests.bit_length()) if requests > _FEW else None
        return size.plain if size is not None else 1.0

    def _size(self, requests: int) -> _Size:
        return self._sizes.setdefault(requests.bit_length(), _Size())
