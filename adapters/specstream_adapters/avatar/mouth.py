"""The mouth's track: timed sounds in, settled viseme segments out."""

from __future__ import annotations

from dataclasses import dataclass

from specstream.types import Span
from specstream_adapters.avatar.visemes import CLOSURES, SILENCE

__all__ = ["Mouth", "Segment"]

_CLOSURE_MS = 40  # one picture at 25 a second: lips that meet for less are not seen to meet
_DONOR_MS = 10  # what a vowel or a pause keeps when it gives time to a closure
_LONGEST_MS = 1000  # equal neighbours are merged up to here, so that no cue waits for ever
_FULL_VOWEL_MS, _FULL_CONSONANT_MS = 110, 60  # shorter ones don't reach their full shape


@dataclass(slots=True)
class Segment:
    """A viseme from ``start`` to ``end`` (samples of the turn).

    ``viseme=None`` takes its neighbour's. ``level`` is a strength that is already known (measured
    from the audio); without it the strength follows from kind, stress and length.
    """

    viseme: str | None
    start: int
    end: int
    chars: Span
    vowel: bool = False
    stress: float = 1.0
    level: float | None = None

    @property
    def length(self) -> int:
        """Samples."""
        return self.end - self.start

    def strength(self, sample_rate: int) -> float:
        """How far the shape is reached, 0 to 1: closures always, short vowels only in part."""
        if self.level is not None:
            return self.level
        if self.viseme == SILENCE or self.viseme in CLOSURES:
            return 1.0
        ms = self.length * 1000 / sample_rate
        if self.vowel:
            return min(1.0, 0.8 * self.stress * (0.55 + 0.45 * min(1.0, ms / _FULL_VOWEL_MS)))
        return 0.85 * (0.6 + 0.4 * min(1.0, ms / _FULL_CONSONANT_MS))


class Mouth:
    """Gives shapeless sounds a shape, merges equal neighbours, and lets every closure be seen.

    A segment is settled once the two (after merging) that follow it are known; ``flush`` settles
    the rest. Whatever is pushed contiguously comes out contiguously.
    """

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        self._segments: list[Segment] = []
        self._shapeless: Segment | None = None
        self._last_viseme = SILENCE

    def push(self, segment: Segment) -> list[Segment]:
        """Take the next segment, starting where the last one ended; return what is settled."""
        waiting, self._shapeless = self._shapeless, None
        if waiting is not None:
            takes_next = segment.viseme not in (None, SILENCE)
            waiting.viseme = self._last_viseme
            if takes_next:
                waiting.viseme, waiting.level = segment.viseme, segment.level
                waiting.vowel, waiting.stress = segment.vowel, segment.stress
            self._append(waiting)
        if segment.viseme is None:
            self._shapeless = segment
        else:
            self._append(segment)
        settled = []
        while len(self._segments) > 2:
            settled += self._settle()
        return settled

    def flush(self) -> list[Segment]:
        """Settle everything: nothing follows that could change it."""
        if self._shapeless is not None:
            self._shapeless.viseme = self._last_viseme
            self._append(self._shapeless)
            self._shapeless = None
        settled = []
        while self._segments:
            settled += self._settle()
        self._last_viseme = SILENCE
        return settled

    def _append(self, new: Segment) -> None:
        assert new.viseme is not None
        self._last_viseme = new.viseme
        old = self._segments[-1] if self._segments else None
        limit = self._rate * _LONGEST_MS // 1000
        if old is None or (old.viseme, old.level) != (new.viseme, new.level) or old.length > limit:
            self._segments.append(new)
            return
        old.end = new.end
        old.vowel = old.vowel or new.vowel
        old.stress = max(old.stress, new.stress)
        cited = [chars for chars in (old.chars, new.chars) if chars.length] or [old.chars]
        old.chars = Span(min(c.start for c in cited), max(c.end for c in cited))

    def _settle(self) -> list[Segment]:
        """Take the first segment out, once a closure there or right after has the time it needs."""
        head = self._segments[0]
        if len(self._segments) > 1:
            after = self._segments[1]
            moved = self._lends(after, head)
            head.end, after.start = head.end + moved, after.start + moved
            moved = self._lends(head, after)
            head.end, after.start = head.end - moved, after.start - moved
        del self._segments[0]
        return [head] if head.length else []

    def _lends(self, donor: Segment, closure: Segment) -> int:
        """Samples that ``donor`` gives so that ``closure`` is long enough to be seen."""
        if closure.viseme not in CLOSURES or donor.viseme in CLOSURES:
            return 0
        missing = self._rate * _CLOSURE_MS // 1000 - closure.length
        soft = donor.vowel or donor.viseme == SILENCE
        keeps = self._rate * _DONOR_MS // 1000 if soft else (donor.length + 1) // 2
        return max(0, min(missing, donor.length - keeps))
