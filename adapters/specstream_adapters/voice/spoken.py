"""What a written token sounds like: numbers, prices, times, signs and abbreviations as words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from specstream_adapters.voice.g2p import Word, pronounce, spell
from specstream_adapters.voice.g2p_words import FUNCTION_WORDS

__all__ = ["spoken"]

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
_TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()
_SCALES = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (1000, "thousand"))
_ORDINALS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth",
    "nine": "ninth", "twelve": "twelfth",
}  # fmt: skip
_UNITS = {"$": "dollars", "€": "euros", "£": "pounds", "¥": "yen", "₹": "rupees"}
_SIGNS = {
    **_UNITS, "%": "percent", "&": "and", "@": "at", "+": "plus", "=": "equals", "#": "number",
    "/": "slash", "\u2044": "over", "°": "degrees", "×": "times", "÷": "over", "±": "plus minus",
    "<": "less than", ">": "more than", "^": "to the", "_": "", "*": "times",
}  # fmt: skip
_SHORT = {
    "mr": "mister", "mrs": "missis", "dr": "doctor", "st": "saint", "vs": "versus",
    "etc": "et cetera", "km": "kilometers", "kg": "kilograms", "cm": "centimeters",
}  # fmt: skip
_CAPITALS = FUNCTION_WORDS | {"all", "no", "not", "now", "ok", "one", "see", "two", "why", "yes"}
_PARTS = re.compile(
    r"""
    (?P<unit>[$€£¥₹])(?P<amount>\d{1,3}(?:,\d{3}){1,4}|\d{1,15}(?!\d))(?:\.(?P<cents>\d{1,9}))?
    | (?P<hours>(?<!\d)\d{1,2}):(?P<minutes>\d\d)(?!\d)
    | (?P<place>(?<!\d)\d{1,15})(?:st|nd|rd|th)\b
    | (?P<whole>(?<!\d)(?:\d{1,3}(?:,\d{3}){1,4}|\d{1,15})(?!\d))(?:\.(?P<part>\d{1,9}))?
    | (?P<digit>\d)
    | (?P<initials>\b(?:[^\W\d_]\.){2,9}[^\W\d_]?|\b(?:[^\W\d_]\.)+[^\W\d_]\b)
    | (?P<dot>(?<=\w)\.(?=\w))
    | (?P<word>[^\W\d_]{1,40}(?:'[^\W\d_]{1,9})*)
    | (?P<sign>\S)
    """,
    re.VERBOSE | re.IGNORECASE,
)


def spoken(token: str) -> Iterator[Word]:
    """The words that a reader says for ``token`` (no spaces in it), one after another."""
    text = unicodedata.normalize("NFKC", token).replace("\u2019", "'")
    text = "".join(str(unicodedata.decimal(char, char)) for char in text)
    for part in _PARTS.finditer(text):
        if part["initials"]:
            yield spell(part["initials"].replace(".", "").lower())
        elif part["word"]:
            yield from _letters(part["word"])
        else:
            yield from map(pronounce, _signs(part))


def _letters(word: str) -> Iterator[Word]:
    lower = word.lower()
    if word.isupper() and word.isalpha() and len(word) in (2, 3) and lower not in _CAPITALS:
        yield spell(lower)
    else:
        yield from map(pronounce, _SHORT.get(lower, lower).split())


def _signs(part: re.Match[str]) -> Iterator[str]:
    if part["unit"]:
        yield from _price(part["unit"], part["amount"], part["cents"])
    elif part["hours"]:
        minutes = int(part["minutes"])
        yield from _number(int(part["hours"]))
        yield from ["o'clock"] if not minutes else ["oh"] if minutes < 10 else []
        yield from _number(minutes) if minutes else []
    elif part["place"]:
        yield from _ordinal(int(part["place"]))
    elif part["whole"]:
        yield from _decimal(part["whole"], part["part"])
    elif part["digit"]:
        yield _SMALL[int(part["digit"])]
    elif part["dot"]:
        yield "dot"
    else:
        yield from _SIGNS.get(part["sign"], "").split()


def _price(unit: str, amount: str, cents: str | None) -> Iterator[str]:
    exact = cents is not None and len(cents) == 2
    yield from _decimal(amount, None if exact else cents)
    yield "dollar" if (unit, amount, cents) == ("$", "1", None) else _UNITS[unit]
    if cents is not None and exact and int(cents):
        yield from _number(int(cents))


def _decimal(whole: str, part: str | None) -> Iterator[str]:
    digits = whole.replace(",", "")
    year = len(whole) == 4 and (1100 <= int(digits) <= 1999 or 2010 <= int(digits) <= 2099)
    if digits[0] == "0" and len(digits) > 1:
        yield from (_SMALL[int(digit)] for digit in digits)
    elif year and part is None:
        yield from _number(int(digits[:2]))
        rest = int(digits[2:])
        yield from ["hundred"] if not rest else ["oh"] if rest < 10 else []
        yield from _number(rest) if rest else []
    else:
        yield from _number(int(digits))
    if part is not None:
        yield "point"
        yield from (_SMALL[int(digit)] for digit in part)


def _number(value: int) -> Iterator[str]:
    for scale, name in _SCALES:
        if value >= scale:
            yield from _number(value // scale)
            yield name
            value %= scale
            if not value:
                return
    if value >= 100:
        yield from (_SMALL[value // 100], "hundred")
        value %= 100
        if not value:
            return
    if value >= 20:
        yield _TENS[value // 10]
        value %= 10
        if not value:
            return
    yield _SMALL[value]


def _ordinal(value: int) -> Iterator[str]:
    *before, last = _number(value)
    yield from before
    regular = last[:-1] + "ieth" if last.endswith("y") else last + "th"
    yield _ORDINALS.get(last, regular)
