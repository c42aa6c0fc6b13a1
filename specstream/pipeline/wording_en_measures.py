"""English units where the library doesn't read them: after a fraction, and spoons after a word."""

from __future__ import annotations

import re
from collections.abc import Iterator

from specstream.pipeline.mapped import Edit

__all__ = ["AFTER_FRACTION", "AFTER_WORD", "measure"]

_NAMES = {
    "tsp": "teaspoon", "tbsp": "tablespoon", "oz": "ounce", "lb": "pound", "ft": "foot", "m": "meter",
    "mi": "mile", "yd": "yard", "qt": "quart", "pt": "pint", "gal": "gallon", "hr": "hour",
    "kg": "kilogram", "g": "gram", "km": "kilometer", "cm": "centimeter", "mm": "millimeter",
    "ml": "milliliter", "L": "liter",
}  # fmt: skip
_SIGN = "|".join(sorted(_NAMES, key=len, reverse=True))
_MANY = "two|three|four|five|six|seven|eight|nine|ten|few|several|more|some"
_FULL = "(?:heaping|heaped|level|rounded|scant) "
_DOT = r"\b(?:\.(?=\s[a-z\d]|,))?"  # that of the abbreviation, not of the sentence

AFTER_FRACTION = (
    r"(?:(?P<many>\d\s?[½¼¾]|\d (?:and )?\d+/\d+)|[½¼¾]|(?<![\d/])\d+/\d+)\s?"
    rf"(?P<unit>(?P<sign>{_SIGN}|Tsp|Tbsp)s?{_DOT})"
)
AFTER_WORD = (
    rf"(?:\b(?P<many>(?:{_MANY}) (?:{_FULL})?|(?:[2-9]|1[\d½¼¾])\S* {_FULL})|(?<![\d ]) |^)"
    rf"(?P<unit>(?P<sign>tsp|tbsp|Tsp|Tbsp)s?{_DOT})"
)


def measure(found: re.Match[str]) -> Iterator[Edit]:
    """Read "tsp" as "teaspoon", or as "teaspoons" after more than one."""
    sign = found["sign"]
    word = _NAMES.get(sign) or _NAMES[sign.lower()]
    several = "feet" if word == "foot" else f"{word}s"
    many = found["many"] or found["unit"].rstrip(".") != sign
    yield Edit(*found.span("unit"), several if many else word)
