"""Turn the library's events into marks that cover the audio without gaps. Pure computation.

What the library's events lack: a phoneme has a beginning but no end; the closure before a word's
first consonant comes before its event; the second of two phonemes that sound as one (a final "l")
has no duration; an unnamed phoneme may be a pause or a sound; word positions are wrong inside
numbers; two small words may come as one. Audio is held back until it is certain which marks begin
inside it: for the length of a word or a pause, which the library makes in milliseconds.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from specstream.types import PAUSE, Mark, Span, SpeechBuffer
from specstream_adapters.voice.espeak_library import LibraryEvent
from specstream_adapters.voice.shared import take_marks, tokens

__all__ = ["MarkTracker"]

_SILENT = 100
"""Peak below which unnamed audio is a pause (about 50 dB under full scale)."""
_UNNAMED = "\u0259"  # a schwa, for audible sounds without a name
_ALIASES = str.maketrans({":": "\u02d0", "?": "\u0294", "\u03b5": "\u025b"})
# Stress, tones, digits and the library's own signs are not sounds.
_NOT_IPA = re.compile(
    r"[^a-z\u00e0-\u02c7\u02d0\u02d1\u02de\u02e0-\u02e4\u0300-\u036f\u03b1-\u03c9\u1d00-\u1dff]"
)


class _Words:
    """Finds the words of the text that the library is saying, from the positions that it reports."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(tokens(text))
        self.starts = [token.start for token in self._tokens]
        self._first = self._last = -1  # the tokens being said; more than one if said as one
        self._at = -1  # the character of the last event
        self._given = -1  # the last token that `give` has returned

    @property
    def chars(self) -> Span:
        """Where the words being said lie in the text."""
        if self._first < 0:
            return Span(0, 0)
        return Span(self._tokens[self._first].start, self._tokens[self._last].end)

    def locate(self, at: int) -> int | None:
        """The index of the word that an event at character ``at`` begins; None if the last goes on."""
        found = bisect_right(self.starts, at) - 1
        if found + 1 < len(self._tokens) and (found < 0 or at >= self._tokens[found].end):
            found += 1  # a sign between words: the event belongs to the word after it
        # An accented word of one letter is reported one character into the word before it.
        if found == self._last and at == self._at + 1 and self.text(self.chars).isalpha():
            found += 1
        self._at = at
        return found if self._last < found < len(self._tokens) else None

    def move(self, token: int) -> None:
        """Make ``token`` the word that is being said."""
        self._first = self._last = token

    def text(self, chars: Span) -> str:
        """The characters at ``chars``."""
        return self._text[chars.start : chars.end]

    def give(self, before_char: int) -> Span | None:
        """Return where the word that was said lies; None if it was returned before.

        Words after it and before ``before_char``, which had no event of their own, are included.
        """
        if self._first <= self._given:
            return None
        self._last = self._given = max(self._last, bisect_left(self.starts, before_char) - 1)
        return self.chars


@dataclass(slots=True)
class _Sound:
    """The phoneme under way. ``name`` is empty for a pause or a sound without a name."""

    start: int
    name: str = ""
    begins_word: bool = False
    peak: int = 0


class MarkTracker:
    """Makes the marks of one call of the library: `feed` audio and events, take `ready`, then `finish`.

    Args:
        text: The text that was given to the library.
        first_char: Where that text lies in the reply.
        first_sample: How many samples of the phrase were spoken before.
    """

    def __init__(self, text: str, first_char: int, first_sample: int) -> None:
        self._length = len(text)
        self._first_char, self._first_sample = first_char, first_sample
        self._words = _Words(text)
        self._voiced: Span | None = None  # from the first sound of the word under way to its last
        self._sound = _Sound(0)
        self._heard = self._released = 0  # samples that were fed, and returned in buffers
        self._pcm: deque[bytes] = deque()
        self._marks: list[Mark] = []

    def feed(self, pcm: bytes, events: Sequence[LibraryEvent]) -> None:
        """Take one buffer of audio and the events inside it, in order."""
        if pcm:
            self._pcm.append(pcm)
        wave = np.frombuffer(pcm, dtype="<i2")
        origin, end = self._heard, self._heard + len(wave)
        for event in events:
            sample = min(max(event.sample, self._heard), end)
            self._listen(wave[self._heard - origin : sample - origin])
            if event.kind == "word":
                self._begin_word(sample, event.at)
            elif event.kind == "end":
                self._end_word(sample, event.at)
            elif not event.name.startswith("("):  # "(en)": the text goes on in another language
                self._begin_sound(sample, event.name)
        self._listen(wave[self._heard - origin :])

    def ready(self) -> Iterator[SpeechBuffer]:
        """Return the buffers whose marks can't change any more."""
        # The word under way may go on: the end of its mark is not known yet.
        settled = self._voiced.start if self._voiced else self._sound.start
        return self._release(settled - 1)

    def finish(self) -> Iterator[SpeechBuffer]:
        """Everything that is left; the last mark ends with the last sample."""
        self._end_word(self._heard, self._length)
        return self._release(self._heard)

    def _release(self, until: int) -> Iterator[SpeechBuffer]:
        while self._pcm and self._released + len(self._pcm[0]) // 2 <= until:
            pcm = self._pcm.popleft()
            self._released += len(pcm) // 2
            ahead = self._first_sample + self._released + len(pcm) // 2  # by one buffer
            known = self._first_sample + until + 1
            yield SpeechBuffer(pcm, take_marks(self._marks, ahead, known))

    def _listen(self, wave: np.ndarray[tuple[int], np.dtype[np.int16]]) -> None:
        self._heard += len(wave)
        if not self._sound.name and len(wave):
            self._sound.peak = max(self._sound.peak, int(wave.max()), -int(wave.min()))

    def _begin_sound(self, sample: int, name: str) -> None:
        name = _NOT_IPA.sub("", name.translate(_ALIASES).lower())
        if not name and not self._sound.name:
            self._sound.begins_word = False  # a word may begin with a pause
        elif name and self._sound.begins_word:
            self._sound = _Sound(self._sound.start, name)  # the closure before it is part of it
        else:
            rest = self._end_sound(sample)
            self._sound = _Sound(sample, rest + name if name else "")

    def _end_sound(self, sample: int) -> str:
        """Mark the sound under way; return its name if it turned out to have no length."""
        sound, samples = self._sound, Span(self._sound.start, sample)
        if samples.length == 0:
            if sound.name and self._voiced and self._marks and self._marks[-1].text != PAUSE:
                last = self._marks.pop()
                self._marks.append(replace(last, text=last.text + sound.name))
                return ""
            return sound.name
        if not sound.name and sound.peak < _SILENT:
            after_word = self._words.chars.end
            self._marks.append(self._mark("phoneme", PAUSE, samples, Span(after_word, after_word)))
            return ""
        self._voiced = Span(self._voiced.start if self._voiced else samples.start, sample)
        name = sound.name or _UNNAMED
        self._marks.append(self._mark("phoneme", name, samples, self._words.chars))
        return ""

    def _begin_word(self, sample: int, at: int) -> None:
        token = self._words.locate(at)
        if token is None:
            self._end_sound(sample)
        else:
            self._end_word(sample, self._words.starts[token])
            self._words.move(token)
        self._sound = _Sound(sample, begins_word=True)

    def _end_word(self, sample: int, before_char: int) -> None:
        self._end_sound(sample)
        if self._voiced and (chars := self._words.give(before_char)):
            word = self._mark("word", self._words.text(chars), self._voiced, chars)
            place = bisect_right(self._marks, word.samples.end, key=lambda mark: mark.samples.end)
            self._marks.insert(place, word)  # before the pause that followed it
        self._voiced = None
        self._sound = _Sound(sample)

    def _mark(self, kind: Literal["word", "phoneme"], text: str, samples: Span, chars: Span) -> Mark:
        a, b = self._first_sample, self._first_char
        samples = Span(a + samples.start, a + samples.end)
        return Mark(kind, text, samples, Span(b + chars.start, b + chars.end))
