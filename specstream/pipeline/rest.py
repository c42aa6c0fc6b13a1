"""What a turn that was stopped still gives: the cues that bring an avatar to rest."""

from __future__ import annotations

from dataclasses import replace

from specstream.pipeline.stage import Event
from specstream.types import AvatarCue, Chunk, Phrase, ScenePrompt, Span, Speech

__all__ = ["Rest"]


class Rest:
    """Of the events that are read after a turn was stopped, those that are still wanted."""

    def __init__(self) -> None:
        self._cue: Event | None = None  # the last one
        self._rested = False
        self._made_before = 0
        self._t_ms = 0.0
        self._sample = 0

    def saw(self, event: Event) -> None:
        """Take note of an event of the turn."""
        if isinstance(event.item, AvatarCue):
            self._cue = event

    def stopped(self, made_before: int, sample: int, t_ms: float) -> None:
        """The turn was stopped at ``sample``, after ``made_before`` events were made."""
        self._made_before, self._sample, self._t_ms = made_before, sample, t_ms

    def late(self, event: Event) -> Event | None:
        """Of what was made before the stop, nothing; then cues, moved to that moment, and failures."""
        early = event.seq < self._made_before
        self.saw(event)
        if isinstance(event.item, AvatarCue) and not early:
            self._rested = True
            return self._moved(event)
        if early or isinstance(event.item, Chunk | Phrase | Speech | ScenePrompt):
            return None
        return event

    def last(self, seq: int) -> Event | None:
        """The cue that is still missing behind all events, if there is one.

        An avatar that was done before the stop is brought to rest by its last cue.
        """
        if self._rested or self._cue is None:
            return None
        self._rested = True
        return self._moved(replace(self._cue, seq=seq))

    def _moved(self, event: Event) -> Event:
        cue = event.item
        assert isinstance(cue, AvatarCue)
        if cue.samples.start <= self._sample:
            return event
        now = Span(self._sample, self._sample)
        return replace(event, item=replace(cue, t_ms=self._t_ms, samples=now))
