"""Checks that the cues of a remote avatar lie in the speech that it was given, in order of time."""

from __future__ import annotations

from collections import deque

from specstream.pipeline.limits import MAX_RATE
from specstream.pipeline.yielded import ROUNDING_MS
from specstream.types import AvatarCue, Revoke, Span, Speech
from specstream.ws.stage.codec import Violation
from specstream.ws.stage.frames import EndFrame
from specstream.ws.stage.given import Extent, Given
from specstream.ws.stage.order import Order

__all__ = ["CueOrder"]

_REST_S = 2
"""A mouth may take this long behind the speech to come to rest."""
_LONGEST_S = 600
"""Gestures and emotions have durations of their own; at most this long behind the speech."""

_KINDS = "viseme", "gesture", "emotion"
_RETURNS = 64  # revokes that a kind of cue has not gone back for


class CueOrder(Order):
    """The speech of one turn, and where the cues of each kind have got to.

    After a revoke, the cues may go back once to where the withdrawn speech began. They do so with the
    speech that takes its place: until then, an avatar isn't told that speech was withdrawn, unless that
    was made of a draft.
    """

    def __init__(self) -> None:
        self._given = Given()
        nothing = self._given.last
        self._all = nothing  # the ends of everything that was sent
        self._kept = nothing  # of withdrawn speech that was no draft: its cues may be held back
        self._rate = MAX_RATE  # until there is speech
        self._latest = dict.fromkeys(_KINDS, 0)  # the first sample of each kind's last cue
        # Samples to which a kind's cues may go back.
        self._returns = {kind: deque[int](maxlen=_RETURNS) for kind in _KINDS}
        self._ended = False

    def send(self, item: object) -> None:
        """Count an item that is sent, or the frame that ends the input."""
        self._given.send(item)
        self._ended |= isinstance(item, EndFrame)
        if isinstance(item, Speech):
            self._rate = item.sample_rate
            self._all = _furthest(self._all, Extent.of(item))

    def check(self, cue: AvatarCue, _: int | None = None) -> None:
        """Count a cue that was received.

        Raises:
            Violation: it lies behind the speech, covers text that was not given, or runs backwards.
        """
        self._check_place(cue, _furthest(self._given.last, self._kept))
        start = cue.samples.start
        if self._ended and not cue.samples.length:
            return  # brings the face to rest, wherever it says that this is
        latest, returns = self._latest[cue.kind], self._returns[cue.kind]
        if start < latest - self._slack:
            while returns and start < returns[0] - self._slack:
                returns.popleft()
            if not returns:
                raise Violation(f"{_cue_name(cue)} came after a {cue.kind} that begins at {latest}")
            returns.popleft()
            latest = start
        self._latest[cue.kind] = max(start, latest)

    def check_rest(self, cue: AvatarCue) -> None:
        """Check a cue that brings the face to rest in a cancelled turn.

        Raises:
            Violation: it lies behind all speech, or covers text that was not given.
        """
        self._check_place(cue, self._all)

    def revoke(self, revoke: Revoke) -> None:
        """The avatar has answered to the first revoke that was unanswered."""
        if not revoke.drafted:
            self._kept = _furthest(self._kept, self._given.last)
        begin = self._given.revoke(revoke.from_char)
        for kind, returns in self._returns.items():
            # A cue of released speech may still be held back; one of a draft is forgotten.
            if begin is not None and (begin < self._latest[kind] or not revoke.drafted):
                returns.append(begin)

    @property
    def _slack(self) -> int:
        return self._rate * ROUNDING_MS // 1000

    def _check_place(self, cue: AvatarCue, given: Extent) -> None:
        if cue.t_ms < 0 or cue.duration_ms < 0:  # finite: see `specstream.ws.stage.frames`
            raise Violation(f"{_cue_name(cue)} is at {cue.t_ms} ms for {cue.duration_ms} ms")
        behind = self._rate * (_REST_S if cue.kind == "viseme" else _LONGEST_S)
        latest_start, latest_end = given.reach + self._slack, given.reach + behind
        if cue.samples.start > latest_start or cue.samples.end > latest_end:
            raise Violation(f"{_cue_name(cue)} lies behind its speech, which ends at {given.reach}")
        if cue.chars.end > given.chars.end or cue.tokens.end > given.tokens:
            where = f"characters {_range(cue.chars)}, tokens {_range(cue.tokens)}"
            ends = f"character {given.chars.end}, token {given.tokens}"
            raise Violation(
                f"{_cue_name(cue)} covers {where}; the text that it was given ends at {ends}"
            )


def _furthest(one: Extent, other: Extent) -> Extent:
    longest = one.chars if one.chars.end >= other.chars.end else other.chars
    return one.joined(other)._replace(chars=longest)


def _range(span: Span) -> str:
    return f"{span.start} to {span.end}"


def _cue_name(cue: AvatarCue) -> str:
    return f"the {cue.kind} {cue.name!r:.40} of samples {_range(cue.samples)}"
