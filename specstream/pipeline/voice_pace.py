"""How fast a voice is, as its phrases show it."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Spoken", "VoicePace"]

_PIECE_S = 1.0  # of a phrase that is shorter, the only piece doesn't tell whether the voice streams
_GUESS = 0.5  # the factor of a voice that has only spoken such phrases
_NEWEST = 0.3  # weight of the newest measurement


@dataclass(slots=True)
class Spoken:
    """A phrase that was released, and what the voice has made of it. Times are seconds."""

    end: int  # of its text
    start: int
    letters: int
    given: float
    first_s: float | None = None  # until its first audio came
    first_audio_s: float = 0.0
    worked_s: float = 0.0  # on the audio after the first
    made_s: float = 0.0


class VoicePace:
    """What was measured of a voice; lives as long as its pipeline. The newest phrases count most.

    Attributes:
        first_s: Seconds from a phrase to its first audio, besides those that grow with its length.
        factor: Seconds that the voice works on a second of audio.
        letter_s: Seconds of audio for a letter.
        streams: Whether phrases come in pieces; if not, the first audio comes when the whole phrase is
            finished. None: the phrases so far were too short to tell.
    """

    def __init__(self) -> None:
        self.first_s = 0.0
        self.factor = self.letter_s = math.nan
        self.streams: bool | None = None
        self._line = _Line()

    @property
    def known(self) -> bool:
        """Whether a phrase was measured."""
        return not math.isnan(self.factor)

    def learn(self, phrase: Spoken) -> None:
        """A phrase was spoken to its end."""
        if not phrase.made_s or phrase.first_s is None:
            return
        later_s = phrase.made_s - phrase.first_audio_s
        if later_s > 0:
            begins, self.streams = not self.streams, True
            self.first_s = _mean(self.first_s, phrase.first_s, begins)
            self.factor = _mean(self.factor, phrase.worked_s / later_s, begins)
        elif self.streams:
            self.first_s = _mean(self.first_s, phrase.first_s, begins=False)
        elif self.streams is None and phrase.made_s < _PIECE_S:
            self.first_s = phrase.first_s
            self.factor = min(_GUESS, phrase.first_s / phrase.made_s)
        else:
            self.streams = False
            self.first_s, self.factor = self._line.add(phrase.made_s, phrase.first_s)
        if phrase.letters:
            begins = math.isnan(self.letter_s)
            self.letter_s = _mean(self.letter_s, phrase.made_s / phrase.letters, begins)


def _mean(old: float, new: float, begins: bool) -> float:
    return new if begins else old + _NEWEST * (new - old)


class _Line:
    """Least squares ``y = a + b * x``, neither negative; without evidence, through the origin."""

    def __init__(self) -> None:
        self._sums = (0.01, 0.0, 0.0, 0.0, 0.0)  # a little weight on the origin

    def add(self, x: float, y: float) -> tuple[float, float]:
        """Take a point; return ``a`` and ``b``."""
        point = (1.0, x, y, x * x, x * y)
        n, sx, sy, sxx, sxy = (
            (1 - _NEWEST) * old + new for old, new in zip(self._sums, point, strict=True)
        )
        self._sums = (n, sx, sy, sxx, sxy)
        steep = (n * sxy - sx * sy) / (n * sxx - sx * sx)
        b = min(max(0.0, steep), sy / sx)
        return (sy - b * sx) / n, b
