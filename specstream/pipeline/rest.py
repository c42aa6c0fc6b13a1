"""The events that a stopped turn still gives: cues that bring an avatar to rest, and failures."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from specstream.pipeline.contract import Event
from specstream.types import AvatarCue, Chunk, Phrase, ScenePrompt, Span, Speech

__all__ = ["Rest"]

_NEUTRAL = "neutral"
_SILENT = frozenset({"sil", "0", "X", _NEUTRAL})
"""Names of the closed mouth: Oculus's and ARKit's, Microsoft's, Rhubarb's, VRM's."""
_MAX_DIRECTIONS = 1024  # emotions and gestures of a turn that are remembered
_ROUNDING_MS = 1e-6


class Rest:
    """Chooses which of the events that are read after a turn was stopped are given.

    The stages' own cues end with their speech, which may reach far behind the moment of the stop. So
    none of them is given any more, but what brings the face that was shown to rest at that moment: a
    closed mouth, which takes back all cues behind it, and a neutral expression if there was another.
    """

    def __init__(self) -> None:
        self._mouth: AvatarCue | None = None  # the last viseme that was given
        self._directions: deque[AvatarCue] = deque(maxlen=_MAX_DIRECTIONS)  # given, not taken back
        self._closed: AvatarCue | None = None  # a closed mouth as the avatar itself describes it
        self._latest: Event | None = None  # with a cue
        self._made_before = 0
        self._t_ms = 0.0
        self._sample = 0

    def saw(self, event: Event) -> None:
        """Take note of an event of the turn that is given."""
        if isinstance(event.item, AvatarCue):
            self._latest = event
            self._show(event.item)

    def stopped(self, made_before: int, sample: int, t_ms: float) -> None:
        """The turn was stopped at ``sample``, after ``made_before`` events were made.

        Called again with an earlier sample, it makes the face come to rest there.
        """
        self._made_before, self._sample, self._t_ms = made_before, sample, t_ms

    def late(self, event: Event) -> Event | None:
        """Return what to give for an event that is read after the stop; None: nothing.

        Events that were made before the stop, text, speech and prompts are left out. In the place of
        cues are those that bring the face to rest; failures and controls pass.
        """
        early = event.seq < self._made_before
        if isinstance(event.item, AvatarCue):
            if _is_closed(event.item):
                self._closed = event.item
            # Without a closed mouth of this avatar one may follow, or else `last` makes one.
            due = None if early or self._closed is None else self._next()
            return None if due is None else replace(event, item=due)
        if early or isinstance(event.item, Chunk | Phrase | Speech | ScenePrompt):
            return None
        return event

    def last(self, seq: int) -> Event | None:
        """Return the next cue that must follow all other events, if one is missing.

        An avatar stage that had ended before the stop gives no more cues, and one that hangs neither.
        """
        due = self._next()
        return replace(self._latest, seq=seq, item=due) if self._latest and due else None

    def _show(self, cue: AvatarCue) -> None:
        if cue.kind != "viseme":
            self._directions.append(cue)
            return
        if self._mouth is not None and _end(self._mouth) > cue.t_ms + _ROUNDING_MS:
            kept = (old for old in self._directions if old.t_ms < cue.t_ms)
            self._directions = deque(kept, _MAX_DIRECTIONS)
        self._mouth = cue
        if _is_closed(cue):
            self._closed = cue

    def _next(self) -> AvatarCue | None:
        """Return the next cue that the face needs to be at rest from the stop on, as shown."""
        cue = self._closing() or self._calming()
        if cue is not None:
            self._show(cue)
        return cue

    def _closing(self) -> AvatarCue | None:
        mouth, stop = self._mouth, self._t_ms + _ROUNDING_MS
        if mouth is not None and (_end(mouth) > stop or not _is_closed(mouth)):
            return self._silence(mouth)
        behind = [cue for cue in self._directions if cue.t_ms > stop]
        if not behind:
            return None
        # Only a viseme that begins before the last one's end takes back: a longer one comes first.
        lasting = replace(self._silence(behind[-1]), duration_ms=behind[-1].t_ms - self._t_ms)
        return replace(lasting, samples=Span(self._sample, behind[-1].samples.start))

    def _calming(self) -> AvatarCue | None:
        emotion = next((cue for cue in reversed(self._directions) if cue.kind == "emotion"), None)
        if emotion is None or emotion.name == _NEUTRAL:
            return None
        return self._now(replace(emotion, name=_NEUTRAL, weight=1.0, weights={}))

    def _silence(self, like: AvatarCue) -> AvatarCue:
        if self._closed is not None:
            return self._now(self._closed)
        flat = dict.fromkeys(like.weights, 0.0) if like.kind == "viseme" else {}
        cue = replace(like, kind="viseme", name="sil", weight=1.0, weights=flat, sound="")
        return self._now(cue)

    def _now(self, cue: AvatarCue) -> AvatarCue:
        samples = Span(self._sample, self._sample)
        return replace(cue, t_ms=self._t_ms, duration_ms=0.0, samples=samples)


def _end(cue: AvatarCue) -> float:
    return cue.t_ms + cue.duration_ms


def _is_closed(cue: AvatarCue) -> bool:
    """Whether it is a closed mouth: by its name, or as the viseme without duration that ends a turn."""
    return cue.kind == "viseme" and (cue.name in _SILENT or not cue.samples.length)
