"""The events that a stopped turn still gives: cues that bring an avatar to rest, and failures."""

from __future__ import annotations

from dataclasses import replace

from specstream.pipeline.stage import Event
from specstream.types import AvatarCue, Chunk, Phrase, ScenePrompt, Span, Speech

__all__ = ["Rest"]


class Rest:
    """Chooses which of the events that are read after a turn was stopped are given."""

    def __init__(self) -> None:
        self._cue: Event | None = None  # the latest cue
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
        """Return what to give for an event that is read after the stop; None: nothing.

        Events that were made before the stop, text, speech and prompts are left out. Cues are moved to
        the moment of the stop; failures and controls pass.
        """
        early = event.seq < self._made_before
        self.saw(event)
        if isinstance(event.item, AvatarCue) and not early:
            self._rested = True
            return self._moved(event)
        if early or isinstance(event.item, Chunk | Phrase | Speech | ScenePrompt):
            return None
        return event

    def last(self, seq: int) -> Event | None:
        """Return the cue that must follow all other events, if one is missing.

        An avatar stage that had ended before the stop gives no more cues: its latest one is given anew,
        at the moment of the stop.
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
