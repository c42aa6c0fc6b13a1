"""German numbers that depend on their sentence: "1" before a noun, ratios and "3x"."""

from __future__ import annotations

import re
from collections.abc import Iterator

from specstream.pipeline.mapped import Edit

__all__ = ["ONE", "RATIO", "TIMES", "indefinite", "one", "times"]

ONE = (
    r"(?<![\w.,:/-])(?P<one>1)(?= (?!aber|oder|unter|über|hinter|wieder|Punkt \d)"
    r"(?:(?P<adjective>[a-zäöüß]+e[nrs]?) )?(?P<noun>[A-ZÄÖÜ][a-zäöüß]+))"
)
# "21:9" can't be a time, as times have two digits behind the colon, up to 59.
RATIO = (
    r"(?<![\w:.,])(\d{1,3}):"
    r"(?=(?:\d|[6-9]\d|\d{3,6}|\d{1,3}(?:\.\d{3})+)(?![\w:]|[.,]\d)(?! Uhr))"
)
TIMES = r"(?<![\w.,])(\d{1,2})( ?[x×])(?= (?!(?:und|oder|ist|mal|plus|minus) )[A-Za-zÄÖÜäöü]{2})"

_LABEL = re.compile(  # "Kapitel 1 Einleitung", and any noun within a sentence
    r"(?:[^\s.!?:] [A-ZÄÖÜ][a-zäöüß]+|\bNr\.|\b(?:Kapitel|Teil|Tag|Platz|Nummer|Stufe|Gruppe|Zimmer"
    r"|Schritt|Band|Seite|Klasse|Phase|Akt|Szene|Frage|Aufgabe|Artikel|Absatz|Heft)) $"
)
_DATIVE = re.compile(r"\b(?i:mit|nach|bei|von|zu|aus|seit|vor|in|ab|binnen) $")
# The endings of nine in ten feminine nouns; the gender of others is not known.
_FEMININE = re.compile(r"\w+(?:e|ung|heit|keit|schaft|tät|ion|ik|in)")


def one(found: re.Match[str]) -> Iterator[Edit]:
    """Read "1" before a noun as the article that the noun, or its adjective, asks for."""
    before = found.string[max(0, found.start() - 30) : found.start()]
    noun, adjective = found["noun"], found["adjective"] or ""
    if noun != "Uhr" and _LABEL.search(before):
        return  # "im Kapitel 1 Einleitung"
    if noun == "Uhr":
        word = "ein"
    elif adjective and not adjective.endswith("n"):
        word = "eine" if adjective.endswith("e") else "ein"
    else:
        word = indefinite(before, feminine=_FEMININE.fullmatch(noun) is not None)
    yield Edit(*found.span("one"), word)


def indefinite(before: str, *, feminine: bool) -> str:
    """The indefinite article behind ``before``."""
    if _DATIVE.search(before):
        return "einer" if feminine else "einem"
    return "eine" if feminine else "ein"


def times(found: re.Match[str]) -> Iterator[Edit]:
    """Read "3x täglich" as "3 mal täglich"."""
    if found[1] == "1":
        yield Edit(*found.span(1), "ein")
    yield Edit(*found.span(2), " mal")
