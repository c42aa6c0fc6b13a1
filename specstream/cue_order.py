"""The order in which a consumer reads a turn: cues before the speech that they time."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import Self

from specstream.pipeline.stage import Event, Pipeline, StageFailed
from specstream.types import AvatarCue, Cancel, Revoke, Speech

__all__ = ["CuesFirst", "cues_first"]

_MOST = 128
"""Pieces of speech that are held. More than a link holds between two stages, so an avatar that answers
each piece is never left behind; one that doesn't is not waited for any longer."""


class CuesFirst:
    """The events of a run, each piece of speech behind the cues that begin in it.

    All else keeps its order. The avatar's stage is given the speech when the log is, so what a piece
    waits for is the computation of its cues. Cancelling the wait for an event loses nothing.
    """

    def __init__(self, events: AsyncIterator[Event]) -> None:
        self._events = events
        self._held: deque[tuple[Event, int]] = deque()  # with the last sample of the piece
        self._due: deque[Event] = deque()
        self._covered = 0  # the end of the last mouth cue
        self._end = 0  # of the speech
        self._waits = True
        self._over: Exception | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._due:
            if self._over is not None:
                raise self._over
            try:
                self._take(await anext(self._events))
            except Exception as error:  # the run is over, or its reply failed
                self._over = error
                self._release()
        return self._due.popleft()

    def _take(self, event: Event) -> None:
        item = event.item
        if isinstance(item, Speech) and self._waits:
            if item.samples.start < self._end:  # it replaces what was revoked, and so do its cues
                self._covered = min(self._covered, item.samples.start)
            self._end = item.samples.end
            self._held.append((event, item.samples.end if item.pcm else 0))
        elif isinstance(item, Revoke | StageFailed) and event.source == "voice" and self._held:
            self._held.append((event, 0))  # behind the speech that was made before
        else:
            self._stop_waiting(event)
            self._due.append(event)
        if isinstance(item, AvatarCue) and item.kind == "viseme":
            self._covered = item.samples.end
        while self._held and self._held[0][1] <= self._covered:
            self._due.append(self._held.popleft()[0])
        if len(self._held) > _MOST:
            self._waits = False
            self._release()

    def _stop_waiting(self, event: Event) -> None:
        """Release speech for which no more cues can come."""
        item, by_avatar = event.item, event.source == "avatar"
        if isinstance(item, Revoke) and by_avatar:
            if any(isinstance(held.item, Revoke) for held, _ in self._held):
                while not isinstance(self._held[0][0].item, Revoke):
                    self._due.append(self._held.popleft()[0])
                self._due.append(self._held.popleft()[0])
        elif isinstance(item, Cancel) or (isinstance(item, StageFailed) and by_avatar):
            self._waits = self._waits and isinstance(item, Cancel)
            self._release()

    def _release(self) -> None:
        self._due.extend(event for event, _ in self._held)
        self._held.clear()


def cues_first(pipeline: Pipeline, run: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """The events of ``run``: in this order if an avatar of ``pipeline`` is punctual, else as made."""
    stages = (stage for branch in pipeline._branches for stage in branch)
    punctual = any(getattr(stage, "punctual", False) for stage in stages)
    return CuesFirst(run) if punctual else run
