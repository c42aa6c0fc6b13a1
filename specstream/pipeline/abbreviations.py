"""Tells what a full stop after a word means, by lists for a dozen languages that are used all at once.

The lists are in ``words.toml``. A reply may change its language from one sentence to the next, so there
is no language option; words that mean different things in two languages are distinguished by their case
or left out.
"""

from __future__ import annotations

import tomllib
from enum import Enum
from importlib.resources import files

__all__ = ["ORDINAL_LEADS", "ORDINAL_OPENERS", "TIME_WORDS", "WORDS", "Stop", "stop_after"]


class Stop(Enum):
    """How a full stop after an abbreviation reads when a capital letter follows."""

    PLAIN = "no abbreviation: the sentence ends"
    BINDS = "the sentence goes on, whatever follows"
    NUMBERS = "goes on before a number, else the sentence ends"
    GOES_ON = "goes on, unless the next word opens sentences"
    MAY_END = "the sentence ends, unless the next word belongs to it"


def _read() -> dict[str, frozenset[str]]:
    text = files("specstream.pipeline").joinpath("words.toml").read_text("utf-8")
    return {name: frozenset(words.split()) for name, words in tomllib.loads(text).items()}


WORDS = _read()
"""The lists by their names in the file, which says what they are for."""
_VOWELS = frozenset("aeiouy")
TIME_WORDS = WORDS["dates"] | WORDS["time_words"]
ORDINAL_LEADS = WORDS["ordinal_leads"] | frozenset(
    stem + ending for stem in WORDS["article_stems"] for ending in ("", "e", "em", "en", "er", "es")
)
ORDINAL_OPENERS = WORDS["german_openers"] | WORDS["sentence_openers"] - WORDS["not_after_ordinals"]
"""What opens a sentence in any language after "den 3." and the like."""


def stop_after(word: str, *, after_number: bool = False) -> Stop:
    """How to read a full stop after ``word`` (given without that stop, inner stops included).

    ``after_number``: "3 in." is a length, "come in." is not.
    """
    low = word.lower()
    capital = word[:1].isupper()
    if low in WORDS["binds"] or (capital and low in WORDS["titles"]):
        return Stop.BINDS
    if low in WORDS["numbers"] or low.endswith("str"):  # "Hauptstr. 5"
        return Stop.NUMBERS
    if (
        low in WORDS["may_end"]
        or (capital and low in WORDS["dates"])
        or (after_number and low in WORDS["units"])
    ):
        return Stop.MAY_END
    if low in WORDS["goes_on"] or (capital and low in WORDS["names"]):
        return Stop.GOES_ON
    return _by_shape(word)


def _by_shape(word: str) -> Stop:
    """Judge a word that is in no table: initials, letters with stops, words without vowels."""
    letters = word.split(".")
    if len(word) == 1 and word.isalpha():
        return Stop.GOES_ON  # an initial
    if len(letters) > 1 and all(len(part) == 1 and part.isalpha() for part in letters):
        return Stop.BINDS if word.islower() else Stop.GOES_ON  # "e.g", "U.S"
    consonants = word.isascii() and word.isalpha() and not _VOWELS & set(word.lower())
    if consonants and word.istitle() and 1 < len(word) <= 4 and word.lower() not in WORDS["sounds"]:
        return Stop.GOES_ON  # "Sgt", "Bldg": too many for a table
    return Stop.PLAIN
