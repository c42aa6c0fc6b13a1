"""Turn text into the phonemes of a Piper voice, each with the written word that it belongs to.

espeak-ng reads a clause as a whole, since a word's sound depends on its neighbours, and returns no
positions. They are found by comparing the clause's phonemes with those of each word alone.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from specstream.types import Span
from specstream_adapters.voice.hibari_text import NO_WORD, Script
from specstream_adapters.voice.shared import pieces, tokens

__all__ = ["PiperReader"]

_MOST_CHARS = 300  # of a sentence that is read at once
_MOST_IN_WORD = 40  # characters; a longer "word" is read part by part
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
