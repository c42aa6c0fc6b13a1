"""The mouth's segments, one viseme each: made from loudness where marks are missing, and joined."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from specstream.types import Span
from specstream_adapters.avatar.directions import CLOSURES, SILENCE
from specstream_adapters.avatar.sounds import names_of

__all__ = ["Loudness", "Mouth", "Segment"]

_CLOSURE_MS = 40  # one picture at 25 a second: lips that meet for less are not seen to meet
_DONOR_MS = 10  # what a vowel or a pause keeps when it gives time to a closure
_LONGEST_MS = 1000  # equal neighbours are merged up to here, so that no cue waits for ever
_FULL_VOWEL_MS, _FULL_CONSONANT_MS = 110, 60  # shorter ones don't reach their full shape
_FRAME_MS = 40  # one picture at 25 a second
_RANGE_DB = 28.0  # the mouth is wide open at the loudest level so far, and closed this far below
_FLOOR_DB = -45.0  # least "loudest level", so that a room's noise doesn't open the mouth
_FALL_DB = 0.25  # how far the loudest level falls in each frame
_STEPS = 4  # openings of the mouth that are told apart
_HISS_HZ, _BRIGHT_HZ, _DARK_HZ = 3000.0, 1100.0, 500.0  # by zero crossings, see `_shape`


@dataclass(slots=True)
class Segment:
    """A viseme from ``start`` to ``end`` (samples of the turn).

    A segment with ``viseme=None`` takes a neighbour's viseme. ``sound`` is its IPA, as in `Phone`.
    ``level`` is a strength that is already known (measured from the audio); without it the strength
    follows from kind, stress and length.
    """

    viseme: str | None
    start: int
    end: int
    chars: Span
    vowel: bool = False
    stress: float = 1.0
    level: float | None = None
    sound: str = ""

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


class Loudness:
    """Makes segments from audio, relative to its loudest level: a quiet voice opens the mouth, too."""

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        self._frame = max(1, sample_rate * _FRAME_MS // 1000)
        self._peak = _FLOOR_DB

    def segments(self, pcm: bytes, start: int, chars: Span) -> list[Segment]:
        """One segment a frame, the last may be shorter; ``pcm`` is s16le mono from ``start`` on."""
        samples = np.frombuffer(pcm, dtype="<i2").astype(np.float32) / 32768.0
        return [
            self._segment(samples[at : at + self._frame], start + at, chars)
            for at in range(0, len(samples), self._frame)
        ]

    def _segment(self, frame: np.ndarray, start: int, chars: Span) -> Segment:
        level = 10.0 * float(np.log10(np.mean(np.square(frame)) + 1e-12))
        self._peak = max(_FLOOR_DB, level, self._peak - _FALL_DB)
        opening = 1.0 + (level - self._peak) / _RANGE_DB
        step = min(_STEPS, max(0, int(opening * _STEPS + 0.5))) / _STEPS
        if level <= _FLOOR_DB or step == 0.0:
            return Segment(SILENCE, start, start + len(frame), chars)
        shape = self._shape(frame)
        vowel = shape != "SS"
        return Segment(shape, start, start + len(frame), chars, vowel=vowel, level=step)

    def _shape(self, frame: np.ndarray) -> str:
        """A viseme for the frame's timbre: its zero crossings tell a hiss from a vowel."""
        crossings = np.count_nonzero(np.signbit(frame[1:]) != np.signbit(frame[:-1]))
        hertz = crossings * self._rate / (2.0 * max(1, len(frame)))
        if hertz > _HISS_HZ:
            return "SS"
        return "E" if hertz > _BRIGHT_HZ else "O" if hertz < _DARK_HZ else "aa"


class Mouth:
    """Gives sounds without a shape one, merges equal neighbours, and makes closures long enough to see.

    Segments that were returned don't change. Segments pushed without gaps are returned without gaps.
    """

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        self._segments: deque[Segment] = deque()
        self._shapeless: Segment | None = None
        self._last_viseme = SILENCE

    def push(self, segment: Segment) -> None:
        """Take the next segment, starting where the last one ended."""
        self._resolve(segment)
        if segment.viseme is None:
            self._shapeless = segment
        else:
            self._append(segment)

    def take(self, until: int) -> list[Segment]:
        """Return every segment that begins before ``until``; the last may end later."""
        if self._shapeless is not None and self._shapeless.start < until:
            self._resolve()
        given: list[Segment] = []
        while self._segments and self._segments[0].start < until:
            self._split(until)
            given += self._settle()
        return given

    def flush(self, until: int) -> list[Segment]:
        """Return the rest, cut at ``until``, where the phrase ends."""
        self._resolve()
        while self._segments and self._segments[-1].start >= until:
            last = self._segments[-1]
            if (last.viseme in CLOSURES, last.start, last.end) == (True, until, until):
                break  # a closure without length takes its time from the segment before it
            self._segments.pop()
        for segment in self._segments:
            segment.end = min(segment.end, until)
        given: list[Segment] = []
        while self._segments:
            given += self._settle()
        self._last_viseme = SILENCE
        return given

    def _resolve(self, after: Segment | None = None) -> None:
        """Give a sound without a shape that of the sound after it; the last one if there is none."""
        waiting, self._shapeless = self._shapeless, None
        if waiting is None:
            return
        waiting.viseme = self._last_viseme
        if after is not None and after.viseme not in (None, SILENCE):
            waiting.viseme, waiting.level = after.viseme, after.level
            waiting.vowel, waiting.stress = after.vowel, after.stress
        self._append(waiting)

    def _append(self, new: Segment) -> None:
        assert new.viseme is not None
        self._last_viseme = new.viseme
        old = self._segments[-1] if self._segments else None
        limit = self._rate * _LONGEST_MS // 1000
        if old is None or _looks(old) != _looks(new) or old.length > limit:
            self._segments.append(new)
            return
        old.end = new.end
        old.vowel = old.vowel or new.vowel
        old.stress = max(old.stress, new.stress)
        cited = [chars for chars in (old.chars, new.chars) if chars.length] or [old.chars]
        old.chars = Span(min(c.start for c in cited), max(c.end for c in cited))

    def _split(self, until: int) -> None:
        """Split a long segment and keep its end back, since a closure that follows may need the time."""
        head, lendable = self._segments[0], (_CLOSURE_MS + _DONOR_MS) * self._rate // 1000
        at = max(until, head.end - lendable)
        if len(self._segments) == 1 and at < head.end and (head.vowel or head.viseme == SILENCE):
            level = head.strength(self._rate)
            self._segments[0] = replace(head, end=at, level=level)
            self._segments.append(replace(head, start=at, level=level))

    def _settle(self) -> list[Segment]:
        """Remove and return the first segment; a closure in it or right after it first gets its time."""
        head = self._segments[0]
        if len(self._segments) > 1:
            after = self._segments[1]
            moved = self._lends(after, head)
            head.end, after.start = head.end + moved, after.start + moved
            moved = self._lends(head, after)
            head.end, after.start = head.end - moved, after.start - moved
        self._segments.popleft()
        return [head] if head.length else []

    def _lends(self, donor: Segment, closure: Segment) -> int:
        """Samples that ``donor`` gives so that ``closure`` is long enough to be seen."""
        if closure.viseme not in CLOSURES or donor.viseme in CLOSURES:
            return 0
        missing = self._rate * _CLOSURE_MS // 1000 - closure.length
        soft = donor.vowel or donor.viseme == SILENCE
        keeps = self._rate * _DONOR_MS // 1000 if soft else (donor.length + 1) // 2
        return max(0, min(missing, donor.length - keeps))


def _looks(segment: Segment) -> tuple[object, ...]:
    assert segment.viseme is not None
    return (*names_of(segment.viseme, segment.sound), segment.level)
