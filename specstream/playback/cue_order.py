"""Reorder a turn's events, so that avatar cues come before the speech in which they begin."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import Self

from specstream.stages.pipeline import Event, Pipeline, StageFailed
from specstream.types import AvatarCue, Cancel, Revoke, Speech

__all__ = ["CuesFirst", "cues_first"]

_MAX_HELD = 128
"""Pieces of speech that may be held back for their cues. A link between two stages holds fewer, so an
avatar stage that answers each piece stays within this. If more are held, the avatar doesn't answer:
from then on speech isn't held back."""


class CuesFirst:
    """Iterates over the events of a run, with each piece of speech after the cues that begin in it.

    All other events keep their order. The avatar's stage gets the speech at the same time as the event
    log, so a piece is delayed only by the computation of its cues. Cancelling the wait for an event
    loses none.
    """

    def __init__(self, events: AsyncIterator[Event]) -> None:
        self._events = events
        self._held: deque[tuple[Event, int]] = deque()  # each with the sample that cues must reach
        self._due: deque[Event] = deque()  # to be returned next
        self._covered = 0  # end of the last viseme cue, in samples
        self._end = 0  # of the speech so far, in samples
        self._waits = True  # whether speech is held back at all
        self._over: Exception | None = None  # what ended the run; raised after the last event

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
            if item.samples.start < self._end:  # replaces revoked speech, whose cues don't count
                self._covered = min(self._covered, item.samples.start)
            self._end = item.samples.end
            self._held.append((event, item.samples.end if item.pcm else 0))
        elif isinstance(item, Revoke | StageFailed) and event.source == "voice" and self._held:
            self._held.append((event, 0))  # must stay behind the speech that was made before it
        else:
            self._stop_waiting(event)
            self._due.append(event)
        if isinstance(item, AvatarCue) and item.kind == "viseme":
            self._covered = item.samples.end
        while self._held and self._held[0][1] <= self._covered:
            self._due.append(self._held.popleft()[0])
        if len(self._held) > _MAX_HELD:
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
    """Return ``run`` through `CuesFirst` if an avatar of ``pipeline`` is punctual, else unchanged."""
    stages = (stage for branch in pipeline._branches for stage in branch)
    punctual = any(getattr(stage, "punctual", False) for stage in stages)
    return CuesFirst(run) if punctual else run
