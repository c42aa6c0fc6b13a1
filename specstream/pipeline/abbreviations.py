"""Tells what a full stop after a word means, by lists for a dozen languages that are used all at once.

The lists are in ``words.toml``, which also has what is said for an abbreviation (`SPOKEN`). A reply may
change its language from one sentence to the next, so a full stop has no language option; words that mean
different things in two languages are distinguished by their case or left out.
"""

from __future__ import annotations

import tomllib
from enum import Enum
from importlib.resources import files
from typing import Any

__all__ = [
    "ORDINAL_LEADS",
    "ORDINAL_OPENERS",
    "SPOKEN",
    "TIME_WORDS",
    "WORDS",
    "Stop",
    "is_listed",
    "stop_after",
]


class Stop(Enum):
    """How a full stop after an abbreviation reads when a capital letter follows."""

    PLAIN = "no abbreviation: the sentence ends"
    BINDS = "the sentence goes on, whatever follows"
    NUMBERS = "goes on before a number, else the sentence ends"
    GOES_ON = "goes on, unless the next word opens sentences"
    MAY_END = "the sentence ends, unless the next word belongs to it"


def _read() -> dict[str, Any]:
    text = files("specstream.pipeline").joinpath("words.toml").read_text("utf-8")
    return tomllib.loads(text)


def _said(entries: str) -> dict[str, str]:
    """What is said for each abbreviation; one without a capital may open a sentence with one."""
    pairs = [entry.split(": ") for entry in entries.replace("\n", " ").strip(" ;").split(";")]
    said = {short.strip(): words for short, words in pairs}
    return {_capital(short): _capital(words) for short, words in said.items()} | said


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _spoken(file: dict[str, Any]) -> dict[str, dict[str, dict[str, str]]]:
    spoken: dict[str, dict[str, dict[str, str]]] = {}
    for name, languages in file.items():
        if not isinstance(languages, str):
            for language in languages.keys() - {"other"}:
                spoken.setdefault(language, {})[name] = _said(languages[language])
    return spoken


def _words(name: str, entry: str | dict[str, str]) -> frozenset[str]:
    if isinstance(entry, str):
        return frozenset(entry.split())
    said = (short for kinds in SPOKEN.values() for short in kinds.get(name, ()))
    shorts = {short.lower().replace(" ", "") for short in said}
    return frozenset(shorts.union(entry.get("other", "").split()))


_FILE = _read()
SPOKEN = _spoken(_FILE)
"""What is said for abbreviations: by language, by the name of their list, and as they are written."""
WORDS = {name: _words(name, entry) for name, entry in _FILE.items()}
"""The lists by their names in the file, which says what they are for; abbreviations in small letters."""
_VOWELS = frozenset("aeiouy")
_DATES = (WORDS["short_months"] | WORDS["days"]) - WORDS["sentence_openers"]  # "So.", "Do."
_NUMBERS = WORDS["numbers"] | WORDS["labels"]
_LISTED = frozenset(
    word for name, entry in _FILE.items() if isinstance(entry, dict) for word in WORDS[name]
)
TIME_WORDS = WORDS["time_words"].union(date for date in _DATES if len(date) > 2)  # not "Mi", "Di"
ORDINAL_LEADS = WORDS["ordinal_leads"] | frozenset(
    stem + ending for stem in WORDS["article_stems"] for ending in ("", "e", "em", "en", "er", "es")
)
ORDINAL_OPENERS = WORDS["german_openers"] | WORDS["sentence_openers"] - WORDS["not_after_ordinals"]
"""What opens a sentence in any language after "den 3." and the like."""


def is_listed(word: str) -> bool:
    """Whether a word (without its last stop and without spaces) is in one of the lists."""
    return word.lower() in _LISTED


def stop_after(word: str, *, after_number: bool = False) -> Stop:
    """How to read a full stop after ``word`` (given without that stop, inner stops included).

    ``after_number``: "3 in." is a length, "come in." is not.
    """
    low = word.lower()
    capital = word[:1].isupper()
    if low in WORDS["binds"] or (capital and low in WORDS["titles"]):
        return Stop.BINDS
    if (low in _NUMBERS and len(low) > 1) or low.endswith("str"):  # "Hauptstr. 5"
        return Stop.NUMBERS
    if (
        low in WORDS["may_end"]
        or (capital and low in _DATES)
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
