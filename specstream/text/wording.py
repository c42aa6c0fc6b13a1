"""Written forms to words: numbers, money, dates, times, units, phone numbers, links, abbreviations.

Rules of `specstream.text.rules` bring a form into a shape that the library normt2s
reads; the library finds the words. Which spoken words stand for which written characters is found by
comparing what the library makes of the whole with what it makes of its parts.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

from specstream.text.english import english
from specstream.text.german import german
from specstream.text.marks import SPOKEN
from specstream.text.rules import Edit, Mapped, Row, rule
from specstream.types import Span

__all__ = ["Wording", "wording_for"]

_log = logging.getLogger("specstream.stages")
Step: TypeAlias = Callable[[str], Iterator[Edit]]
_Word: TypeAlias = re.Match[str]
_WORD = re.compile(r"\S+")
_CANDIDATE = re.compile(
    r"[\d½¼¾²³⁰-₉⅐-⅞]|[^\w\s,;:!?'\"()-]|[IVX]{2}|\b[A-Z]\b|[a-z]-[A-Z]|\b[A-Z][a-z]{2,4},?\s*$"
)
"""A text without any of these has no written forms; a full stop may be that of an abbreviation."""
_MATH = re.compile(
    r"\$\$.+?\$\$|\\\(.+?\\\)|\\\[.+?\\\]"
    r"|(?<![\w$])\$(?![\s$]|(?<=, \$)\d|\d[\d.]*, (?![-−+\d., ]+\$))"
    r"(?:(?!(?<![\\\w])[^\W\d_]{3})[^$\n])+?(?<!\s)\$(?!\d)",
    re.DOTALL,
)
"""LaTeX, which the library reads; prices in a sentence have words between them."""
_LONGEST_FORM = 8
"""Most words of one written form, as in ``Monday, March 4th, 2025, 5 p.m.``"""
_LANGUAGES: dict[str, Callable[[str], Sequence[Row]]] = {"en": english, "de": german}
_BY_RULES = ("numbers", "short_months", "days")
"""Abbreviations that are words, too; rules read them, where they are none."""
_MAX_PIECE = 600
"""Characters that are read at once; a longer text is read in pieces."""


class Wording:
    """Reads written forms in the words of one language.

    Args:
        normalize: From a text to the text with all forms in words, from a library.
        rules: What brings forms into a shape that ``normalize`` reads.
    """

    def __init__(self, normalize: Callable[[str], str], rules: Sequence[Step] = ()) -> None:
        self._normalize = normalize
        self._rules = rules
        self._part = lru_cache(maxsize=2048)(normalize)
        self._broken = False

    def read(self, text: Mapped, before: str = "") -> Mapped:
        """Return ``text`` with its forms in words; ``before`` is the written text before it.

        A piece that a rule or the library fails on is left as it is written; the first failure is
        logged.
        """
        if not _CANDIDATE.search(text.text):
            return text
        if before:
            size = len(before)
            known = tuple(Span(at - size, at - size + 1) for at in range(size))
            own = text.sources or tuple(Span(at, at + 1) for at in range(len(text.text)))
            read = self._read(Mapped(before + text.text, known + own))
            first = next((at for at, span in enumerate(read.sources) if span.end > 0), 0)
            if all(span.start >= 0 for span in read.sources[first:]):
                same = read.text[first:] == text.text
                return text if same else Mapped(read.text[first:], read.sources[first:])
        return self._read(text)  # also if a form reaches from ``before`` into the text

    def _read(self, text: Mapped) -> Mapped:
        for step in self._rules:
            edits = self._safely(step, text.text)
            if edits and ("$" in text.text or "\\" in text.text):
                math = [Span(*found.span()) for found in _MATH.finditer(text.text)]
                edits = [e for e in edits if not any(m.start < e.end and e.start < m.end for m in math)]
            text = text.edited(edits)
        edits = []
        for start, end in _pieces(text.text):
            found = self._safely(self._edits, text.text[start:end])
            edits += [Edit(start + edit.start, start + edit.end, edit.text) for edit in found]
        return text.edited(edits)

    def _safely(self, step: Step, text: str) -> list[Edit]:
        try:
            return list(step(text))
        except Exception as error:
            if not self._broken:
                _log.warning("a phrase is spoken as it is written: reading its forms failed: %r", error)
            self._broken = True
            return []

    def _edits(self, text: str) -> Iterator[Edit]:
        spoken = self._normalize(text)
        if spoken == text:
            return
        if text.rstrip().endswith(".") and spoken.rstrip()[-1:].isalnum():
            spoken = f"{spoken.rstrip()}."  # the stop of "p.m." ended the sentence, too
        old, new = list(_WORD.finditer(text)), list(_WORD.finditer(spoken))
        parts = self._parts(text, old, [word[0] for word in new])
        for part in parts or [_Part(0, 0, len(old), len(new))]:
            if edit := _trimmed(old[part.old : part.old_end], new[part.new : part.new_end]):
                yield edit

    def _parts(self, text: str, old: Sequence[_Word], new: Sequence[str]) -> list[_Part] | None:
        """Divide a text so that its parts, read alone, give the words that the whole gives; else None.

        A backtracking search; ``dead`` has the places from which no division reaches the end.
        """
        found: list[_Part] = []
        dead: set[tuple[int, int]] = set()
        at, heard, count = 0, 0, 1
        for _ in range(20 * len(old) + 20):
            if at == len(old) and heard == len(new):
                return found
            end = at + count
            if count > _LONGEST_FORM or end > len(old):
                dead.add((at, heard))
                if not found:
                    return None
                last = found.pop()
                at, heard, count = last.old, last.new, last.old_end - last.old + 1
                continue
            if count == 1 and heard < len(new) and old[at][0] == new[heard]:
                size = 1
            else:
                words = self._part(text[old[at].start() : old[end - 1].end()]).split()
                if end == len(old) and words and new and new[-1] == f"{words[-1]}.":
                    words[-1] = new[-1]
                size = len(words) if list(new[heard : heard + len(words)]) == words else -1
            if size < 0 or (end, heard + size) in dead:
                count += 1
            else:
                found.append(_Part(at, heard, end, heard + size))
                at, heard, count = end, heard + size, 1
        return None


class _Part(NamedTuple):
    """Words of a text, and the words that are spoken for them; numbers of the first and the end."""

    old: int
    new: int
    old_end: int
    new_end: int


def _trimmed(old: Sequence[_Word], new: Sequence[_Word]) -> Edit | None:
    """Return the edit from ``old`` to ``new`` words, without what both begin and end with."""
    while old and new and old[0][0] == new[0][0]:
        old, new = old[1:], new[1:]
    while old and new and old[-1][0] == new[-1][0]:
        old, new = old[:-1], new[:-1]
    if not old:
        return None
    text, start, end = old[0].string, old[0].start(), old[-1].end()
    said = new[0].string[new[0].start() : new[-1].end()] if new else ""
    while said and start < end and said[-1] == text[end - 1] and not said[-1].isalnum():
        said, end = said[:-1], end - 1
    while said and start < end and said[0] == text[start] and not said[0].isalnum():
        said, start = said[1:], start + 1
    return Edit(start, end, said)


def _pieces(text: str) -> Iterator[Span]:
    start = 0
    while len(text) - start > _MAX_PIECE:
        window = text[start : start + _MAX_PIECE]
        cut = start + (max(window.rfind(mark) for mark in (". ", "\n", " ")) + 1 or _MAX_PIECE)
        yield Span(start, cut)
        start = cut
    yield Span(start, len(text))


@lru_cache(maxsize=32)
def wording_for(language: str) -> Wording | None:
    """Return the wording of a language tag such as ``"en-us"``; None if its language has none.

    The first call for a language loads the library, which takes about a tenth of a second.
    """
    tag = language.lower().replace("_", "-")
    base = tag.split("-")[0]
    rows = _LANGUAGES.get(base)
    if rows is None:
        return None
    try:
        from normt2s import Normalizer
    except ImportError:
        _log.warning("numbers and dates are left to the voice: install normt2s to have them read")
        return None
    library = Normalizer(base)
    library.lexicon.remove("punctuation", "—")  # voices read a dash themselves
    for short in [key for key in library.lexicon.abbreviations if key.endswith(".")]:
        library.lexicon.remove("abbreviations", short)  # the list is ours, as sentences depend on it
    for kind, said in SPOKEN[base].items():
        for short, full in said.items() if kind not in _BY_RULES else ():
            library.add_abbreviation(f"{short}.", full)
    library.load_lexicon(Path(__file__).with_name(f"wording_{base}.toml"))
    library.ensure_compiled()
    return Wording(library.normalize, [rule(row) for row in rows(tag)])
