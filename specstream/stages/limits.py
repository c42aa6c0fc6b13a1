"""Limits of a stage in one turn: how long it may be silent, and how much output a text may have."""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio

from specstream.errors import AdapterFailed, SpecstreamError
from specstream.stages.contract import Link
from specstream.types import Speech

__all__ = ["MAX_MARKS", "MAX_RATE", "MIN_RATE", "Limits", "Watch", "check_rate", "most_audio_s"]

MIN_RATE, MAX_RATE = 4000, 192_000
"""Range of a voice's sample rate."""
MAX_MARKS = 1024
"""Most marks of one piece of speech."""
_MAX_PIECE_S = 30  # seconds of audio in one piece of speech
# Limits of a turn: a base, and an addition for each character of its text.
_AUDIO_S, _AUDIO_S_PER_CHAR = 30, 5  # seconds; read aloud, a character takes a tenth of a second
_MARKS, _MARKS_PER_CHAR = 1000, 50
_ITEMS, _ITEMS_PER_CHAR = 10_000, 500


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds of a stage's own time; waiting for input or for its reader doesn't count.

    ``stall_s``: without giving or taking an item. ``work_s``: on the item that it took last, or on
    what it does after the end of its input.
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


def most_audio_s(chars: int) -> int:
    """Most seconds of speech for a text of ``chars`` characters."""
    return _AUDIO_S + _AUDIO_S_PER_CHAR * chars


@dataclass(slots=True, eq=False)
class Watch:
    """Enforces the limits of one stage in one turn; cancels `scope` when its time is up."""

    name: str
    source: Link[object]
    limits: Limits
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    failure: SpecstreamError | None = None
    _since: float | None = None  # when the stage last gave or took an item; None: it isn't working
    _spent_s: float = 0.0  # on the item that it took last
    _taken: int = 0
    _items: int = 0
    _marks: int = 0

    def work(self) -> None:
        """Start to count time: the stage works."""
        self._since = anyio.current_time()

    def rest(self) -> None:
        """Stop counting time: an item that the stage gave is being handed on, or the stage has ended."""
        if self._since is not None:
            self._spent_s += anyio.current_time() - self._since
        self._since = None

    def look(self) -> None:
        """Stop the stage if its time is up; to be called at short intervals."""
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
        """Count one item that the stage made of a text of ``chars`` characters.

        Raises:
            AdapterFailed: the stage has made more than a text of that length can justify.
        """
        self._items += 1
        excess = ""
        if self._items > _ITEMS + _ITEMS_PER_CHAR * chars:
            excess = f"{self._items} items"
        elif isinstance(item, Speech):
            rate, most_s = item.sample_rate, most_audio_s(chars)
            ends = (mark.samples.end for mark in item.marks)
            check_rate(rate, f"stage {self.name!r}")
            self._marks += len(item.marks)
            if len(item.marks) > MAX_MARKS:
                excess = f"{len(item.marks)} marks in one piece"
            elif self._marks > _MARKS + _MARKS_PER_CHAR * chars:
                excess = f"{self._marks} marks"
            elif item.samples.length > _MAX_PIECE_S * rate:
                excess = f"{item.samples.length} samples in one piece"
            elif (end := max(item.samples.end, *ends, 0)) > most_s * rate:
                excess = f"{end / rate:.0f} s of speech"
        if excess:
            raise AdapterFailed(f"stage {self.name!r} gave {excess} for {chars} characters of text")
