"""Word error rate of a recogniser's transcripts."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Any

from specstream.pipeline.mapped import Mapped
from specstream.pipeline.wording import wording_for

__all__ = ["WordErrors", "plain_words"]

_NOT_A_WORD = re.compile(r"[^\w']+")


def plain_words(text: str, language: str = "en-us") -> list[str]:
    """The words of a text in lower case, with numbers as words and without punctuation."""
    wording = wording_for(language)
    if wording is not None:
        text = wording.read(Mapped(text)).text
    text = (
        unicodedata.normalize("NFKC", text)
        .casefold()
        .replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    )
    return _NOT_A_WORD.sub(" ", text).replace("'", "").split()


@dataclass(slots=True)
class WordErrors:
    """Counts of spoken words, and of the substitutions, insertions and deletions in transcripts."""

    words: int = 0
    errors: int = 0

    def add(self, said: str, understood: str) -> None:
        """Count one utterance (Levenshtein distance over words)."""
        wanted, got = plain_words(said), plain_words(understood)
        row = list(range(len(got) + 1))
        for i, word in enumerate(wanted, 1):
            before, row[0] = row[0], i
            for j, other in enumerate(got, 1):
                before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
        self.words += len(wanted)
        self.errors += row[-1]

    @property
    def rate(self) -> float:
        """Errors divided by spoken words; 0 without words."""
        return self.errors / self.words if self.words else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain data."""
        return {"words": self.words, "errors": self.errors, "rate": round(self.rate, 4)}
