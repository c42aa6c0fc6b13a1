"""Choose the marks that a voice hands over with a buffer."""

from __future__ import annotations

from specstream.types import Mark

__all__ = ["take_marks"]


def take_marks(marks: list[Mark], begun: int, known: int | None = None) -> tuple[Mark, ...]:
    """Remove from ``marks`` those that begin before the sample ``begun``; return them in order of start.

    A word comes before its sounds. Marks that end after the sample ``known`` stay in ``marks``, because
    they may still change.
    """
    taken: list[Mark] = []
    left: list[Mark] = []
    for mark in marks:
        due = mark.samples.start < begun and (known is None or mark.samples.end <= known)
        (taken if due else left).append(mark)
    marks[:] = left
    return tuple(sorted(taken, key=lambda mark: (mark.samples.start, -mark.samples.end)))
