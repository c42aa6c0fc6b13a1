"""Text helpers that every voice shares. None changes the length of a text, so offsets stay valid."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

from specstream.types import Span

__all__ = ["pieces", "plain", "speakable", "tokens"]

_RUN = re.compile(r"[^\s<>\u2013\u2014\u2026]+")
_OUTER = (
    "\"'.,;:!?()[]{}<>*_`~|-\u2018\u2019\u201c\u201d\u00ab\u00bb"
    "\u3001\u3002\uff01\uff0c\uff1f\u00ad\u200c\u200d"
)
# Scripts that are written without spaces and where one character is about one syllable.
_SYLLABIC = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_PART = re.compile(f"[{_SYLLABIC}]|[^{_SYLLABIC}]+")
# Where `pieces` may cut, best first: after a sentence, after a clause, after a word.
_CUTS = [re.compile(f"(?s).*{end}") for end in (r"[.!?\u2026]\s", r"[,;:\u2014]\s", r"\s")]


@lru_cache(maxsize=4096)
def _spoken(char: str) -> str:
    """Return ``char``, or a space if it isn't spoken or could be a command to the voice."""
    if char in "\n\t\u00ad\u200c\u200d":  # the soft hyphen and the joiners belong to their word
        return char
    category = unicodedata.category(char)
    pictures = char >= "\u2190" and category in ("So", "Sk")
    arrows = "\u2190" <= char <= "\u21ff"
    emoji_parts = char in "\ufe0e\ufe0f\u20e3"
    return " " if category[0] == "C" or pictures or arrows or emoji_parts else char


def plain(text: str) -> str:
    """Blank emoji, arrows and control characters, one space for each character."""
    return "".join(map(_spoken, text))


def speakable(text: str) -> bool:
    """Whether there is a letter or a digit to say."""
    return any(map(str.isalnum, text))


def tokens(text: str) -> Iterator[Span]:
    """Yield the words of ``text``: runs between spaces and dashes, without the punctuation around them.

    Each Chinese character and each kana is a word of its own.
    """
    for run in _RUN.finditer(text):
        for part in _PART.finditer(text, run.start(), run.end()):
            word = part[0].rstrip(_OUTER)
            start = part.start() + len(word) - len(word.lstrip(_OUTER))
            if start < part.start() + len(word):
                yield Span(start, part.start() + len(word))


def pieces(text: str, limit: int) -> Iterator[Span]:
    """Cut ``text`` into stretches of at most ``limit`` characters, best between sentences or clauses."""
    start = 0
    while len(text) - start > limit:
        window = text[start + limit // 2 : start + limit]
        cut = next((found.end() for rule in _CUTS if (found := rule.match(window))), len(window))
        end = start + limit // 2 + cut
        yield Span(start, end)
        start = end
    if start < len(text):
        yield Span(start, len(text))
