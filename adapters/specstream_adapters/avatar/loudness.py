"""PCM to mouth openings, for stretches of speech that carry no marks."""

from __future__ import annotations

import numpy as np

from specstream.types import Span
from specstream_adapters.avatar.mouth import Segment
from specstream_adapters.avatar.visemes import SILENCE

__all__ = ["Loudness"]

_FRAME_MS = 40  # one picture at 25 a second
_RANGE_DB = 28.0  # from a closed to a wide open mouth, below the loudest so far
_FLOOR_DB = -45.0  # a room's noise must not count as the loudest
_FALL_DB = 0.25  # how fast "the loudest so far" is forgotten, a frame
_STEPS = 4
_HISS_HZ, _BRIGHT_HZ, _DARK_HZ = 3000.0, 1100.0, 500.0


class Loudness:
    """Follows the level of one turn's audio, so that a quiet voice opens the mouth as well."""

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
        """A viseme for the frame's colour: its zero crossings tell a hiss from a vowel."""
        crossings = np.count_nonzero(np.signbit(frame[1:]) != np.signbit(frame[:-1]))
        hertz = crossings * self._rate / (2.0 * max(1, len(frame)))
        if hertz > _HISS_HZ:
            return "SS"
        return "E" if hertz > _BRIGHT_HZ else "O" if hertz < _DARK_HZ else "aa"
