"""Measures how fast a voice is, by the phrases that it speaks."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Spoken", "VoicePace"]

# A piece comes at once with the one before if the voice works on it for less than this share of the
# time that it worked until the phrase's first audio.
_AT_ONCE = 0.1
_TELLS_S = 1.0  # this much audio at once shows that the voice doesn't stream
_FEW = 0.3  # a voice that streams gives less than this share of a phrase at once
_GUESS = 0.5  # upper limit of the factor while phrases were too short to tell
_NEWEST = 0.3  # weight of the newest measurement


@dataclass(slots=True)
class Spoken:
    """A phrase that was released, and what the voice has made of it. Times are seconds."""

    end: int  # of its text, like ``start`` an offset in the reply
    start: int
    letters: int
    given: float  # when, by the event loop's clock
    first_s: float | None = None  # until its first audio came
    first_audio_s: float = 0.0
    worked_s: float = 0.0  # on the audio after the first
    made_s: float = 0.0
    most_at_once_s: float = 0.0  # the longest audio that came at once, in one piece or in many
    _at_once: tuple[float, float] = (0.0, 0.0)  # the audio that came last, and the work on it

    def made(self, seconds: float, worked_s: float) -> None:
        """Note ``seconds`` of audio that the voice gave after it had worked ``worked_s`` on them."""
        if self.first_s is None:
            self.first_s, self.first_audio_s = worked_s, seconds
            self._at_once = (seconds, 0.0)
        else:
            self.worked_s += worked_s
            audio_s, took_s = self._at_once
            fits = took_s + worked_s <= _AT_ONCE * self.first_s
            self._at_once = (audio_s + seconds, took_s + worked_s) if fits else (seconds, 0.0)
        self.made_s += seconds
        self.most_at_once_s = max(self.most_at_once_s, self._at_once[0])


class VoicePace:
    """The measured pace of a voice; lives as long as its pipeline. The newest phrases count most.

    Attributes:
        first_s: Seconds from a phrase to its first audio, without the part that grows with its length.
        factor: Seconds that the voice works on a second of audio.
        letter_s: Seconds of audio for a letter of text.
        streams: Whether the voice works on a phrase while its audio comes; if not, the first audio comes
            when the whole phrase is finished, or a whole sentence of it. None: the phrases so far were
            too short to tell.
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
        """Take the measurements of a phrase that was spoken to its end."""
        if not phrase.made_s or phrase.first_s is None:
            return
        later_s, whole_s = phrase.made_s - phrase.first_audio_s, phrase.first_s + phrase.worked_s
        if phrase.most_at_once_s >= _TELLS_S:
            self.streams = False
            self.first_s, self.factor = self._line.add(phrase.made_s, whole_s)
        elif phrase.most_at_once_s < _FEW * phrase.made_s:
            begins, self.streams = not self.streams, True
            self.first_s = _mean(self.first_s, phrase.first_s, begins)
            self.factor = _mean(self.factor, phrase.worked_s / later_s, begins)
        elif self.streams:
            self.first_s = _mean(self.first_s, phrase.first_s, begins=False)
        elif self.streams is None:
            self.first_s = phrase.first_s
            self.factor = min(_GUESS, whole_s / phrase.made_s)
        else:
            self.first_s, self.factor = self._line.add(phrase.made_s, whole_s)
        if phrase.letters:
            begins = math.isnan(self.letter_s)
            self.letter_s = _mean(self.letter_s, phrase.made_s / phrase.letters, begins)


def _mean(old: float, new: float, begins: bool) -> float:
    return new if begins else old + _NEWEST * (new - old)


class _Line:
    """Least squares of ``y = a + b * x``, neither negative; through the origin without evidence."""

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
