"""The audio of one phrase as frames bring it, with marks of words from the times of characters."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from specstream.types import Mark, Span, SpeechBuffer
from specstream_adapters.voice.shared import take_marks, tokens

__all__ = ["AudioPieces", "CharacterMarks"]

_BUFFER_MS = 60
_ROUNDING_MS = 25  # by which a word may end behind its audio
_AHEAD = 20  # characters that a server may leave out of its times at once


class CharacterMarks:
    """Words of one phrase, with the samples that their characters take.

    A character's times count from the audio that they came with. Characters that aren't in the text are
    passed over, and those of the text that get no time are left out of their word.

    Args:
        text: The phrase's text, as it was sent.
        first_char: Where it lies in the reply.
        rate: Samples a second.
    """

    def __init__(self, text: str, first_char: int, rate: int) -> None:
        self._text, self._first, self._rate = text, first_char, rate
        self._rounding = rate * _ROUNDING_MS // 1000
        self._words = list(tokens(text))
        self._times: dict[int, Span] = {}
        self._at = 0  # characters of the text that were passed
        self._end = 0  # of the last word's mark, in samples

    def add(self, alignment: Mapping[str, Any], begin: int) -> None:
        """Take the times of the characters of the audio that begins at the sample ``begin``.

        Raises:
            ValueError: these are no characters with times.
        """
        chars = alignment.get("chars", alignment.get("characters"))
        starts = alignment.get("charStartTimesMs")
        lengths = alignment.get("charDurationsMs", alignment.get("charsDurationsMs"))
        if not (_texts(chars) and _numbers(starts) and _numbers(lengths)):
            raise ValueError("an alignment without chars, charStartTimesMs and charDurationsMs")
        if not len(chars) == len(starts) == len(lengths):
            raise ValueError("an alignment of lists that differ in length")
        for char, start, length in zip(chars, starts, lengths, strict=True):
            place = self._place(char)
            if place is not None:
                first = begin + round(start * self._rate / 1e3)
                last = begin + round((start + length) * self._rate / 1e3)
                self._times[place] = Span(first, max(first, last))

    def _place(self, char: str) -> int | None:
        if not char.strip():
            return None
        at = self._text.find(char, self._at, self._at + _AHEAD)
        if at < 0:
            return None
        self._at = at + len(char)
        return at

    def take(self, samples: int, *, last: bool = False) -> list[Mark]:
        """Return the marks of the words that lie in the first ``samples`` of the phrase's audio.

        A word whose characters may not all have come stays for the next call. ``last``: this is all the
        audio; what ends behind it is cut off.
        """
        made = []
        while self._words:
            word = self._words[0]
            times = [self._times[at] for at in range(*word) if at in self._times]
            end = max((time.end for time in times), default=0)
            if not last and (self._at < word.end or end > samples + self._rounding):
                break
            del self._words[0]
            start = max(min((time.start for time in times), default=0), self._end)
            end = min(end, samples)
            if start < end:
                self._end = end
                chars = Span(self._first + word.start, self._first + word.end)
                made.append(Mark("word", self._text[slice(*word)], Span(start, end), chars))
        return made


def _texts(given: object) -> TypeGuard[Sequence[str]]:
    return isinstance(given, Sequence) and all(isinstance(each, str) for each in given)


def _numbers(given: object) -> TypeGuard[Sequence[float]]:
    return isinstance(given, Sequence) and all(
        isinstance(each, int | float) and 0 <= each < 1e7 for each in given
    )


class AudioPieces:
    """Takes a phrase's frames, and gives buffers of at most 60 ms with the marks that begin in them.

    One sample is kept until the next frame, to carry the marks that are known at the end only.

    Args:
        text, first_char, rate: See `CharacterMarks`.

    Attributes:
        begun: Whether audio has come.
    """

    def __init__(self, text: str, first_char: int, rate: int) -> None:
        self._marks = CharacterMarks(text, first_char, rate)
        self._size = rate * _BUFFER_MS // 1000
        self._waiting: list[Mark] = []
        self._kept = b""
        self._samples = 0  # that were given
        self.begun = False

    def add(self, frame: Mapping[str, Any]) -> list[SpeechBuffer]:
        """Return the buffers of a frame ``{"audio": base64, "alignment": {…}}``.

        Raises:
            ValueError: its audio or its times can't be read.
        """
        alignment = frame.get("alignment")
        try:
            come = base64.b64decode(frame.get("audio") or "", validate=True)
        except (ValueError, TypeError):
            raise ValueError("audio that is no base64") from None
        if isinstance(alignment, Mapping):
            self._marks.add(alignment, self._samples + len(self._kept) // 2)
        pcm = self._kept + come
        self.begun = self.begun or len(pcm) > 1
        self._waiting += self._marks.take(self._samples + len(pcm) // 2)
        keep = 2 + len(pcm) % 2
        self._kept = pcm[-keep:]
        return self._cut(pcm[:-keep])

    def end(self) -> list[SpeechBuffer]:
        """Return what is left, once all frames have come."""
        pcm, self._kept = self._kept[: len(self._kept) // 2 * 2], b""
        self._waiting += self._marks.take(self._samples + len(pcm) // 2, last=True)
        return self._cut(pcm)

    def _cut(self, pcm: bytes) -> list[SpeechBuffer]:
        buffers = []
        for at in range(0, len(pcm), 2 * self._size):
            part = pcm[at : at + 2 * self._size]
            self._samples += len(part) // 2
            buffers.append(SpeechBuffer(part, take_marks(self._waiting, self._samples)))
        return buffers
