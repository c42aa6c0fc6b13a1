"""English rules that `specstream.pipeline.wording` needs in addition to the library's.

The rules and their words are in ``wording_en.toml``; here are the functions that they call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from specstream.pipeline import wording_rules as rules
from specstream.pipeline.mapped import Edit

__all__ = ["english"]

_WORDS = rules.words("en")
_MONTHS: list[str] = _WORDS["months"]
_FILES = "md|py|js|ts|txt|json|ya?ml|toml|csv|html?|css|pdf|png|jpe?g|mp[34]|wav|zip|exe|sh|cpp|rs"
_ADDRESS = rf"{rules.address(_WORDS['domains'])}|(?<![\w.@/-])[A-Za-z_][\w-]*\.(?:{_FILES})\b"
_SLASHED = r"(?<![\w/.-])(?P<month>\d{1,2})/(?P<day>\d{1,2})/(?P<year>\d{4}|\d{2})(?![\w/]|[.-]\d)"
_DAY_FIRST = ("gb", "uk", "au", "nz", "ie", "in", "za")
_SCREEN = re.compile(r" (?:ratio|aspect|screen|display|format|mix|split|odds|scale)\b")

_digits = rules.each_digit("en")


def _vanity(found: re.Match[str]) -> Iterator[Edit]:
    """Read "1-800-FLOWERS" as "one eight hundred Flowers"."""
    area = found["area"] or found["local"]
    names, hundreds = rules.numerals("en").digit_words, area.endswith("00")
    said = " ".join(names[int(digit)] for digit in (area[0] if hundreds else area))
    said += " hundred" * hundreds
    start = found.start("word")
    yield Edit(found.start(), start, ("one " if found["area"] else "") + f"{said} ")
    words = re.findall(r"[A-Z]+|\d", found["word"])
    yield Edit(start, found.end(), " ".join(word.capitalize() for word in words))


def _date(found: re.Match[str], day_first: bool = False) -> Iterator[Edit]:
    """Give the month of a date in figures its name."""
    month, day, year = (int(found[group]) for group in ("month", "day", "year"))
    if month > 12 or (day_first and day <= 12):
        month, day = day, month
    if len(found["year"]) == 2:
        year += 1900 if year > 50 else 2000
    if 1 <= month <= 12 and 1 <= day <= 31:
        yield Edit(*found.span(), f"{_MONTHS[month - 1]} {day}, {year}")


def _years(found: re.Match[str]) -> Iterator[Edit]:
    """Split a year into two halves, which the library reads as two numbers."""
    high, low = found["a"][:2], found["a"][2:]
    if not found["a"].startswith("200"):
        low = "hundred" if low == "00" else low if low[0] != "0" else f"oh {low[1]}"
        yield Edit(*found.span("a"), f"{high} {low}")


def _to_year(found: re.Match[str]) -> Iterator[Edit]:
    yield Edit(found.start(), found.start("a"), " to ")
    yield from _years(found)


def _each(found: re.Match[str]) -> Iterator[Edit]:
    """Read letters one by one, and digits, too, if there are more than three."""
    yield Edit(*found.span("letters"), " ".join(found["letters"]) + " ")
    if len(found["digits"]) > 3:
        yield from _digits(found)


def _ratio(found: re.Match[str]) -> Iterator[Edit]:
    """Read "16:9" as "16 to 9" if it can't be a time, or a word such as "ratio" follows."""
    first, second = found[1], found[2]
    if (
        len(second) != 2
        or int(second) > 59
        or int(first) > 24
        or _SCREEN.match(found.string, found.end())
    ):
        yield Edit(*found.span(), f"{first} to {second}")


def _measure(found: re.Match[str]) -> Iterator[Edit]:
    """Read a unit where the library doesn't: after a fraction, and "tsp" after a word."""
    sign = found["sign"]
    word = _WORDS["measures"].get(sign) or _WORDS["measures"][sign.lower()]
    several = "feet" if word == "foot" else f"{word}s"
    many = found["many"] or found["unit"].rstrip(".") != sign
    yield Edit(*found.span("unit"), several if many else word)


_SPEAK: dict[str, rules.Speak] = {
    "count": rules.say(lambda numeral: str(rules.value_of(numeral)), "roman"),
    "date": _date,
    "decade": rules.say(lambda years: rules.numerals("en").decade(int(years[:-1]))),
    "digits": _digits,
    "fraction": rules.fraction(" and "),
    "letters": _each,
    "measure": _measure,
    "ratio": _ratio,
    "reign": rules.say(lambda numeral: f"the {rules.value_of(numeral)}th", "roman"),
    "to year": _to_year,
    "vanity": _vanity,
    "years": _years,
}


def english(language: str) -> tuple[rules.Row, ...]:
    """Return the rows for English; for ``"en-gb"`` and the like, 3/4/2025 is the third of April."""
    day_first = language.partition("-")[2].startswith(_DAY_FIRST)
    return (
        (_ADDRESS, rules.link(_WORDS["signs"])),
        (_SLASHED, partial(_date, day_first=day_first)),
        (r"[₀-₉]", rules.say(rules.plain_digit)),
        *rules.everywhere("en", "", " and {} seconds", "times"),
        *rules.rows("en", _SPEAK),
    )
