"""What a stage may do in one turn: how long it may be silent, and how much it may make."""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio

from specstream.errors import AdapterFailed, SpecstreamError
from specstream.pipeline.link import Link
from specstream.types import Speech

__all__ = ["MAX_MARKS", "MAX_RATE", "MIN_RATE", "Limits", "Watch", "check_rate"]

MIN_RATE, MAX_RATE = 4000, 192_000
"""Samples a second that a voice may have."""
MAX_MARKS = 1024
"""Marks of one piece of speech."""
_MAX_PIECE_S = 30
_AUDIO_S, _AUDIO_S_PER_CHAR = 30, 5  # of a turn; read aloud, a character takes a tenth of a second
_MARKS, _MARKS_PER_CHAR = 1000, 50
_ITEMS, _ITEMS_PER_CHAR = 10_000, 500


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds of a stage's own time: waiting for input, or for its reader, doesn't count.

    ``stall_s``: without giving or taking an item. ``work_s``: on the item that it took last, or on its
    end.
    """

    stall_s: float = 60.0
    work_s: float = 600.0


def check_rate(rate: int, who: str) -> None:
    """Refuse a sample rate that no voice has.

    Raises:
        AdapterFailed: it is out of range, or no whole number.
    """
    if not isinstance(rate, int) or not MIN_RATE <= rate <= MAX_RATE:
        raise AdapterFailed(f"{who} claims {rate!r} Hz; from {MIN_RATE} to {MAX_RATE} are possible")


@dataclass(slots=True, eq=False)
class Watch:
    """Looks after one stage in one turn; `scope` is cancelled when its time is up."""

    name: str
    source: Link[object]
    limits: Limits
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    failure: SpecstreamError | None = None
    _since: float | None = None  # when its present silence began
    _spent_s: float = 0.0  # on what it took last
    _taken: int = 0
    _items: int = 0
    _marks: int = 0

    def work(self) -> None:
        """The stage goes on."""
        self._since = anyio.current_time()

    def rest(self) -> None:
        """The stage has given an item, which is being handed on; or it has ended."""
        if self._since is not None:
            self._spent_s += anyio.current_time() - self._since
        self._since = None

    def look(self) -> None:
        """Stop the stage if its time is up. To be called every now and then."""
        if self._since is None:
            return
        if self.source.starved or self.source.taken != self._taken:
            self._taken, self._spent_s = self.source.taken, 0.0
            self.work()
            return
        silent = anyio.current_time() - self._since
        if silent >= self.limits.stall_s:
            why = f"has neither given nor taken anything for {self.limits.stall_s:g} s"
        elif self._spent_s + silent >= self.limits.work_s:
            why = f"has worked {self.limits.work_s:g} s on what it took last"
        else:
            return
        self.stop(AdapterFailed(f"stage {self.name!r} {why}; it was stopped"))

    def stop(self, failure: SpecstreamError) -> None:
        """End the stage with ``failure``."""
        self.failure = failure
        self.scope.cancel()

    def check(self, item: object, chars: int) -> None:
        """Count what the stage made of a text of so many characters.

        Raises:
            AdapterFailed: it is more than anybody could have made of that.
        """
        self._items += 1
        if self._items > _ITEMS + _ITEMS_PER_CHAR * chars:
            raise self._excess(f"{self._items} items", chars)
        if not isinstance(item, Speech):
            return
        check_rate(item.sample_rate, f"stage {self.name!r}")
        if len(item.marks) > MAX_MARKS:
            raise self._excess(f"{len(item.marks)} marks in one piece", chars)
        self._marks += len(item.marks)
        if self._marks > _MARKS + _MARKS_PER_CHAR * chars:
            raise self._excess(f"{self._marks} marks", chars)
        if item.samples.length > _MAX_PIECE_S * item.sample_rate:
            raise self._excess(f"{item.samples.length} samples in one piece", chars)
        if item.samples.end > (_AUDIO_S + _AUDIO_S_PER_CHAR * chars) * item.sample_rate:
            raise self._excess(f"{item.samples.end / item.sample_rate:.0f} s of speech", chars)

    def _excess(self, what: str, chars: int) -> AdapterFailed:
        return AdapterFailed(f"stage {self.name!r} gave {what} for {chars} characters of text")
