"""Turn text into phoneme symbols for hibari-tts, each with the written word that it belongs to.

The package reads a sentence as a whole, since a word's sound depends on its neighbours, and returns
no positions. They are found by comparing the written text with the text that the package made of it.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from specstream.types import Span
from specstream_adapters.voice.shared import pieces, tokens

__all__ = ["NO_WORD", "PUNCTUATION", "Reader", "Script"]

NO_WORD = -1
PUNCTUATION = frozenset(';:,.!?\u2014\u2026"()\u201c\u201d')
"""The symbols at which the model may pause."""
_MOST_CHARS = 300  # of a sentence that is read at once
_MOST_IN_WORD = 40  # characters; a longer "word" is marked part by part
_CHUNK = re.compile(r"\S+")
_LONG_NUMBER = re.compile(r"\d(?:[\d,.]*\d){15,}")
_LONG_WORD = re.compile(r"[^\W\d_]{31,}")
_GROUP = 20  # letters of each part of a long word; the package reads 24 of an unknown word
_NAME = re.compile(r"(?:LETTER|SYLLABLE|CHARACTER|VOWEL SIGN) (.*?)(?: WITH .*)?$")


@dataclass(frozen=True, slots=True)
class Script:
    """A text to be synthesized, as phoneme symbols.

    Attributes:
        symbols: The model's input: phonemes, spaces and punctuation.
        owners: For each symbol the index of its word in ``words``, or `NO_WORD`.
        words: Where each word was written, in order, without overlap.
    """

    symbols: str
    owners: tuple[int, ...]
    words: tuple[Span, ...]

    def parts(self, limit: int) -> Iterator[Script]:
        """Cut between words into scripts of at most ``limit`` symbols; a longer word stays whole."""
        breaks = [i + 1 for i, owner in enumerate(self.owners) if owner == NO_WORD]
        start = 0
        while start < len(self.symbols):
            end = len(self.symbols)
            if end - start > limit:
                at = bisect_right(breaks, start + limit)
                fits = at > 0 and breaks[at - 1] > start
                end = breaks[at - 1] if fits else breaks[at] if at < len(breaks) else end
            yield Script(self.symbols[start:end], self.owners[start:end], self.words)
            start = end


class _Mapped(NamedTuple):
    """Text that was made from other text, and for each character the span that it was made from."""

    text: str
    sources: list[Span]

    def written(self, chars: Span) -> Span:
        """Where ``chars`` came from; for a gap between words, where its neighbour came from."""
        spans = [span for span in self.sources[slice(*chars)] if span.length]
        beside = (*self.sources[chars.end :], *reversed(self.sources[: chars.start]))
        spans = spans or [next(span for span in beside if span.length)]
        return Span(spans[0].start, max(span.end for span in spans))


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads English text for the model.

    Args:
        g2p: The package's converter, with ``tokenize`` and ``phonemize_tokens``.
        normalize: The package's spelling out of units, dates and abbreviations.
        split: The package's sentence splitter.
        letters: The letters that the package can read.
        known: The symbols that the model knows.
    """

    g2p: Any
    normalize: Callable[[str], str]
    split: Callable[[str], list[str]]
    letters: frozenset[str]
    known: frozenset[str]

    def sentences(self, text: str) -> Iterator[Span]:
        """The stretches of ``text`` to read at once: sentences, long ones cut by `pieces`."""
        at = 0
        for sentence in self.split(text):
            start = text.index(sentence, at)
            at = start + len(sentence)
            for part in pieces(sentence, _MOST_CHARS):
                yield Span(start + part.start, start + part.end)

    def read(self, text: str) -> Script:
        """Read one sentence, cleaned by `specstream_adapters.voice.shared.plain`.

        Numbers of more than 16 digits are read digit by digit. A letter of a script that the package
        can't read is read by its name, and a Chinese character as the word "symbol".
        """
        normal = self._normal(self._spelled(text))
        written, words = list(_words(text)), list[Span]()
        symbols, owners, at = "", list[int](), 0
        for token in self.g2p.phonemize_tokens(self.g2p.tokenize(normal.text)):
            at = min(max(at, normal.text.find(token.text, at)), len(normal.text) - 1)
            end = min(at + len(token.text), len(normal.text))
            sounds = "".join(filter(self.known.__contains__, token.phonemes or ""))
            owner = NO_WORD
            if any(map(str.isalpha, sounds)):
                owner = _own(words, _whole(normal.written(Span(at, end)), written))
            symbols += sounds
            owners += [NO_WORD if sound in PUNCTUATION else owner for sound in sounds]
            if token.whitespace and symbols:
                symbols += " "
                owners.append(NO_WORD)
            at = end
        return Script(symbols, tuple(_joined(owners)), tuple(words))

    def _spelled(self, text: str) -> _Mapped:
        """Rewrite ``text`` in letters and numbers that the package can read."""
        numbers = (range(*found.span()) for found in _LONG_NUMBER.finditer(text))
        gaps = {at for number in numbers for at in number}
        for word in _LONG_WORD.finditer(text):
            gaps |= set(range(word.start() + _GROUP, word.end(), _GROUP))
        out, sources = "", list[Span]()
        for at, char in enumerate(text):
            spelled = (" " if at in gaps else "") + self._letter(char)
            out += spelled
            sources += [Span(at, at + 1)] * len(spelled)
        return _Mapped(out, sources)

    def _letter(self, char: str) -> str:
        if char in "[]":  # the package would read "[word](/sounds/)" as a pronunciation
            return " "
        digit = unicodedata.digit(char, None)
        if digit is not None and char not in "\u00b2\u00b3":  # those are read as powers
            return str(digit)
        if char.isascii() or not char.isalpha() or char in self.letters:
            return char
        base = unicodedata.normalize("NFKD", char)[0]
        if base.isalpha() and (base.isascii() or base in self.letters):
            return base
        name = _NAME.search(unicodedata.name(char, ""))
        return f" {name[1].lower() if name else 'symbol'} "

    def _normal(self, spelled: _Mapped) -> _Mapped:
        """Normalize ``spelled`` with the package; a changed chunk maps to the chunk that it replaces."""
        text = self.normalize(spelled.text)
        before = [Span(*found.span()) for found in _CHUNK.finditer(spelled.text)]
        after = [Span(*found.span()) for found in _CHUNK.finditer(text)]
        sources = [Span(0, 0)] * len(text)
        matcher = SequenceMatcher(
            None, [spelled.text[slice(*c)] for c in before], [text[slice(*c)] for c in after], False
        )
        for kind, a, b, c, d in matcher.get_opcodes():
            if kind == "insert":
                a, b = max(a - 1, 0), max(a, 1)
            pairs = [(k, k) for k in range(b - a)] if b - a == d - c else [(0, b - a - 1)] * (d - c)
            for target, (first, last) in zip(after[c:d], pairs, strict=False):
                origin = Span(before[a + first].start, before[a + last].end)
                for at in range(*target):
                    at_origin = origin.start + at - target.start
                    exact = Span(at_origin, at_origin + 1) if kind == "equal" else origin
                    sources[at] = spelled.written(exact)
        previous = Span(0, 0)
        for at, span in enumerate(sources):  # spaces between chunks
            previous = sources[at] = span if span.length else Span(previous.end, previous.end)
        return _Mapped(text, sources)


def _words(text: str) -> Iterator[Span]:
    for word in tokens(text):
        for start in range(word.start, word.end, _MOST_IN_WORD):
            yield Span(start, min(start + _MOST_IN_WORD, word.end))


def _whole(span: Span, written: list[Span]) -> Span:
    """The span of the written words that ``span`` overlaps; ``span`` itself if there are none."""
    first = bisect_right(written, span.start, key=lambda word: word.end)
    last = bisect_left(written, span.end, key=lambda word: word.start)
    return Span(written[first].start, written[last - 1].end) if first < last else span


def _own(words: list[Span], span: Span) -> int:
    """The index in ``words`` of the word at ``span``, which is appended or joined to the last word."""
    if not words or span.start >= words[-1].end:
        words.append(span)
    elif span.end > words[-1].end:
        words[-1] = Span(words[-1].start, span.end)
    return len(words) - 1


def _joined(owners: list[int]) -> Iterator[int]:
    """The owners, with symbols between two symbols of the same word given to that word."""
    last: dict[int, int] = {owner: at for at, owner in enumerate(owners)}
    current = NO_WORD
    for at, owner in enumerate(owners):
        if owner != NO_WORD:
            current = owner
        yield current if current != NO_WORD and at <= last[current] else NO_WORD
