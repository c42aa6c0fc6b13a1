"""How much of a reply was heard when its play-out stopped.

A reply may be written with Markdown, tags and figures that are spoken as several words; a voice's marks
say which characters of the reply each spoken word stands for, and only those are used here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from specstream.types import Span, Speech

__all__ = ["HeardTrack", "SpokenWord"]

_WORD = re.compile(r"\S+")
_SLOW_CHARS_PER_S = 10
"""Pace assumed of a voice without marks before a phrase's length is known: slower than voices speak, so
that no word counts as heard too early."""


class SpokenWord(Protocol):
    """A word mark: when it is spoken, and the characters of the reply that it stands for."""

    @property
    def samples(self) -> Span: ...  # noqa: D102

    @property
    def chars(self) -> Span: ...  # noqa: D102


class _Word(NamedTuple):
    samples: Span
    chars: Span


class _Open(NamedTuple):
    """A phrase whose speech has begun and not ended."""

    chars: Span
    samples: Span
    words_before: int  # of earlier phrases
    rate: float  # samples a second, on the caller's clock


class HeardTrack:
    """When each word of a reply is spoken, on a sample clock of the caller's choice.

    ``tags`` are the parts of the text that are not spoken.
    """

    def __init__(self, tags: Sequence[Span] = ()) -> None:
        self.tags = tags
        self._words: list[_Word] = []
        self._open: _Open | None = None

    def add(self, words: Iterable[SpokenWord], speech: Speech, samples: Span, text: str) -> None:
        """Add the words of the next piece of speech, which covers ``samples``.

        If the voice gave no words for a phrase, its words are spread over its audio by length. Speech
        that begins before the last one ended replaces what was there (see `Revoke`).

        Args:
            words: The marks of the words that end in the piece.
            speech: The piece, on the voice's clock.
            samples: Where it lies on the caller's clock.
            text: The reply so far.
        """
        if self._open is None:
            self._words = [word for word in self._words if word.samples.start < samples.start]
            self._open = _Open(speech.chars, samples, len(self._words), 0.0)
        self._words += [_Word(word.samples, word.chars) for word in words]
        scale = samples.end / speech.samples.end if speech.samples.end else 1.0
        covered = Span(self._open.samples.start, samples.end)
        self._open = self._open._replace(samples=covered, rate=speech.sample_rate * scale)
        if speech.last:
            before = self._open.words_before
            if len(self._words) == before:
                self._words += self._spread(text, self._open.chars, covered)
            # A voice's rounding may put a word's end behind the audio: it is heard with the audio's end.
            for at, (spoken, chars) in enumerate(self._words[before:], before):
                self._words[at] = _Word(Span(*(min(s, covered.end) for s in spoken)), chars)
            self._open = None

    def _spread(self, text: str, chars: Span, samples: Span) -> list[_Word]:
        """Spread the words of a part of ``text`` over ``samples`` by their length."""
        words: list[_Word] = []
        for found in _WORD.finditer(text, chars.start, chars.end):
            word = Span(*found.span())
            if any(tag.start < word.end and tag.end > word.start for tag in self.tags):
                continue
            start, end = (
                samples.start + samples.length * (edge - chars.start) // chars.length
                for edge in word
            )
            words.append(_Word(Span(start, end), word))
        return words

    def _unmarked(self, text: str) -> list[_Word]:
        """The words of a phrase that has no marks yet and may go on."""
        phrase = self._open
        if phrase is None or len(self._words) > phrase.words_before:
            return []
        slow = int(phrase.chars.length / _SLOW_CHARS_PER_S * phrase.rate)
        start, end = phrase.samples
        return self._spread(text, phrase.chars, Span(start, max(end, start + slow)))

    def cut(self, text: str, samples: int) -> int:
        """Return the length of the part of ``text`` that was heard once ``samples`` were played.

        It ends right behind the last word that was heard completely, with its punctuation. Characters
        that are spoken as several words ("$5") were heard once the last of these was.
        """
        words = [*self._words, *self._unmarked(text)]
        unheard = [word.chars.start for word in words if word.samples.end > samples]
        limit = min(unheard, default=len(text))
        heard = [word.chars.end for word in words if word.samples.end <= samples]
        heard = [end for end in heard if end <= limit or not unheard]
        if not heard:
            return 0
        end, limit = min(max(heard), len(text)), min(limit, len(text))
        while end < limit and not (text[end].isspace() or text[end] == "["):
            end += 1
        return end
