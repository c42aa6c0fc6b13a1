"""Turn text into the phonemes of neural voices, each with the written word that it belongs to.

hibari-tts reads a sentence as a whole, espeak-ng (for Piper's voices) a clause, since a word's sound
depends on its neighbours, and neither returns positions. They are found by comparing the written text
with the text that hibari-tts made of it, and a clause's phonemes with those of each word alone.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from specstream.types import Span
from specstream_adapters.voice.shared import pieces, tokens

__all__ = ["NO_WORD", "PUNCTUATION", "PiperReader", "Reader", "Script"]

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


_STOP = re.compile(r"[.!?\u2026\u3002\uff01\uff1f]+[\"'\u201d\u2019\u00bb)\]]*(?=\s|$)")
_CLAUSE = re.compile(r"[,;:.!?\u2026\u3001\u3002\uff0c\uff01\uff1f]+(?=\W|$)|\s[-\u2013]+\s|\u2014")
_SAID_AS = str.maketrans("\u2026\u2013\u2014-\u3001\u3002\uff0c\uff01\uff1f", ".,,,,.,!?")
_SWITCH = re.compile(r"\([a-z-]+\)|[\u200d\u0361]")  # "(en)": the text goes on in another language
_LAST_WORD = re.compile(r"(?<![^\W_])[^\W\d_]{1,4}$")
_TITLES = frozenset([*"abcdefghijklmnopqrstuvwxyz", *"dr mr mrs ms prof st bzw ca nr vs".split()])
_STRESS = "\u02c8\u02cc"


@dataclass(frozen=True, slots=True)
class PiperReader:
    """Reads text for one Piper voice.

    Args:
        phonemes: IPA of a text, with a space between words: that of espeak-ng.
        ids: The voice's ``phoneme_id_map``.
    """

    phonemes: Callable[[str], str]
    ids: Mapping[str, Sequence[int]]

    def sentences(self, text: str) -> Iterator[Span]:
        """The stretches of ``text`` to read at once: sentences, long ones cut by `pieces`."""
        start = 0
        ends = [found.end() for found in _STOP.finditer(text) if _ends(text, found)]
        for end in dict.fromkeys([*ends, len(text)]):
            for part in pieces(text[start:end], _MOST_CHARS):
                yield Span(start + part.start, start + part.end)
            start = end

    def read(self, text: str) -> Script:
        """Read one sentence, cleaned by `specstream_adapters.voice.shared.plain`.

        A symbol of the script is a character of IPA (letters with their marks in one), a space or a
        mark at which the voice pauses. Symbols that the voice doesn't know are left out.
        """
        symbols, owners, words = "", list[int](), list[Span]()
        for clause, mark in _clauses(text):
            said, of = self._clause(text, clause, words)
            if not said:
                continue
            symbols += said
            owners += of
            pause = mark + " " if mark in self.ids else " "
            symbols += pause
            owners += [NO_WORD] * len(pause)
        return Script(symbols, tuple(owners), tuple(words))

    def ids_of(self, symbol: str) -> list[int]:
        """The voice's numbers for a symbol; empty if it has none."""
        parts = [self.ids.get(part, ()) for part in unicodedata.normalize("NFD", symbol)]
        return [number for part in parts for number in part]

    def _clause(self, text: str, clause: Span, words: list[Span]) -> tuple[str, list[int]]:
        """A clause's symbols and their owners; its words are appended to ``words``."""
        written = [
            Span(clause.start + start, clause.start + min(start + _MOST_IN_WORD, word.end))
            for word in tokens(text[slice(*clause)])
            for start in range(word.start, word.end, _MOST_IN_WORD)
        ]
        alone = [self._ipa(text[slice(*word)]) for word in written]
        said = self._ipa(text[slice(*clause)]) if len(written) > 1 else "".join(alone)
        heard = [(word, sound) for word, sound in zip(written, alone, strict=True) if sound]
        if not said or not heard:
            return "", []
        owners = _aligned(said, [sound for _, sound in heard])
        numbers = dict[int, int]()
        for owner in owners:
            if owner != NO_WORD and owner not in numbers:
                numbers[owner] = len(words)
                words.append(heard[owner][0])
        return said, [numbers.get(owner, NO_WORD) for owner in owners]

    def _ipa(self, text: str) -> str:
        """The symbols of a text that the voice knows, single spaces between words."""
        said = unicodedata.normalize("NFC", _SWITCH.sub("", self.phonemes(text)))
        return " ".join("".join(char for char in said if char == " " or self.ids_of(char)).split())


def _ends(text: str, found: re.Match[str]) -> bool:
    """Whether a sentence ends there: not behind an initial or a title; few texts still have one here."""
    word = _LAST_WORD.search(text[: found.start()])
    return found[0] != "." or word is None or word[0].lower() not in _TITLES


def _clauses(text: str) -> Iterator[tuple[Span, str]]:
    """The clauses of a sentence, each with the mark behind it: ``,`` ``.`` ``?``…, or nothing."""
    start = 0
    for found in _CLAUSE.finditer(text):
        if not _ends(text, found):
            continue
        yield Span(start, found.start()), found[0].strip().translate(_SAID_AS)[-1:]
        start = found.end()
    yield Span(start, len(text)), ""


def _aligned(said: str, alone: Sequence[str]) -> list[int]:
    """For each symbol of ``said`` the index of the word in ``alone`` that it belongs to, in order.

    Spaces between words belong to none (`NO_WORD`).
    """
    owned = [(char, owner) for owner, word in enumerate(alone) for char in word + " "]
    matcher = SequenceMatcher(None, said, "".join(char for char, _ in owned), False)
    owners = list[int | None]([None] * len(said))
    for kind, a, b, c, d in matcher.get_opcodes():
        for at in range(a, b):
            if d > c:
                source = c + (at - a if kind == "equal" else (at - a) * (d - c) // (b - a))
                owners[at] = owned[source][1]
    out, last = list[int](), 0
    for at, owner in enumerate(owners):  # an unmatched symbol goes with the one before it
        stress = said[at] in _STRESS and at + 1 < len(said)
        guess = owners[at + 1] if stress and owners[at + 1] is not None else owner
        last = max(last, guess if guess is not None else last)
        out.append(last)
    for at in range(len(said)):
        between = 0 < at < len(said) - 1 and out[at - 1] == out[at + 1]
        if said[at] == " " and not between:
            out[at] = NO_WORD
    return out
