"""English rules that `specstream.text.wording` needs in addition to the library's.

The rules and their words are in ``wording_en.toml``; here are the functions that they call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from specstream.text import rules
from specstream.text.rules import Edit

__all__ = ["english"]

_WORDS = rules.words("en")
_MONTHS: list[str] = _WORDS["months"]
_FILES = "md|py|js|ts|txt|json|ya?ml|toml|csv|html?|css|pdf|png|jpe?g|mp[34]|wav|zip|exe|sh|cpp|rs"
_ADDRESS = rf"{rules.address(_WORDS['domains'])}|(?<![\w.@/-])[A-Za-z_][\w-]*\.(?:{_FILES})\b"
_SLASHED = r"(?<![\w/.-])(?P<month>\d{1,2})/(?P<day>\d{1,2})/(?P<year>\d{4}|\d{2})(?![\w/]|[.-]\d)"
_SHORT = (
    rf"(?:\b(?P<lead>(?i:on|due|dated|since|until|till|effective|starting|EOD|COB)"
    rf"|{rules.any_of(_WORDS['days'])}|[A-Z][a-z]+day)[.,]* )?"
    r"(?<![\w/.$])(?<!\D-)(?P<month>\d{1,2})/(?P<day>\d{1,2})(?![\w/]|\.\d)"
)
_NO_DATE_AFTER = re.compile(
    r"\s?(?:%|\"|″)|[ -](?:of|inch|in\b|time|full|scale|cup|mile|lb|oz|odds|ratio|mix)"
)
_NO_DATE_BEFORE = re.compile(
    rf"\b(?i:{rules.any_of(_WORDS['scores'])}|(?:score|rate|grade) of|a|an|about|only|times"
    r"|(?:odds|ratio|mix|dilution)(?: (?:is|are|was|were|of|at))?) $"
)
_DUE = re.compile(r"\b(?i:by|before|deadline is|starts|begins|ends) $")  # "by 3/1", but "by 3/4"
_COUNTED = re.compile(r" [a-z]{4,}s\b")  # "3/15 apples"
_DAY_FIRST = ("gb", "uk", "au", "nz", "ie", "in", "za")
_RATIO = re.compile(
    rf"\b(?i:{rules.any_of(_WORDS['scores'])}|ratio|odds|mix|split)(?: (?:of|is|was|by))? $"
)
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


def _short_date(found: re.Match[str], day_first: bool = False) -> Iterator[Edit]:
    """Read "9/30" as a date where a word says so, or where it is no likely fraction."""
    month, day = int(found["month"]), int(found["day"])
    start, text = found.start("month"), found.string
    if _NO_DATE_AFTER.match(text, found.end()) or (month, day) == (9, 11):
        return
    likely = month > 1 and day > 12 and day != 16
    if (day_first and found["lead"]) or (month > 12 and (day_first or found["lead"])):
        month, day = day, month
        likely = True
    before = text[max(0, start - 20) : start]
    likely = likely or (month > 1 == day and _DUE.search(before) is not None)
    counts = _COUNTED.match(text, found.end()) or _NO_DATE_BEFORE.search(before)
    if not found["lead"] and (counts or not likely):
        return
    if 1 <= month <= 12 and 1 <= day <= 31:
        yield Edit(start, found.end(), f"{_MONTHS[month - 1]} {day}")


def _aircraft(found: re.Match[str]) -> Iterator[Edit]:
    """Read "737-800" as "seven thirty-seven eight hundred", and "A320-200" alike."""
    kind, variant = found["type"], found["variant"]
    letter, kind = ("A ", kind[1:]) if kind[0] == "A" else ("", kind)
    rest = "hundred" if kind[1:] == "00" else f"oh {kind[2]}" if kind[1] == "0" else kind[1:]
    if len(variant) == 3:
        variant = f"{variant[0]} {'hundred' if variant[1:] == '00' else variant[1:]}"
    suffix = "".join(f" {sign}" for sign in found["suffix"] or "")
    said = f"{letter}{kind[0]} {rest} {variant}{suffix}"
    yield Edit(*found.span(), said + (found["many"] or ""))


def _years(found: re.Match[str]) -> Iterator[Edit]:
    """Split a year into two halves, which the library reads as two numbers."""
    high, low = found["a"][:2], found["a"][2:]
    if not found["a"].startswith("200"):
        low = "hundred" if low == "00" else low if low[0] != "0" else f"oh {low[1]}"
        yield Edit(*found.span("a"), f"{high} {low}")


def _month(found: re.Match[str]) -> Iterator[Edit]:
    """Read the month of "08/2027"."""
    yield Edit(found.start("month"), found.end(), _MONTHS[int(found["month"]) - 1] + " ")


def _to_year(found: re.Match[str]) -> Iterator[Edit]:
    yield Edit(found.start(), found.start("a"), " to ")
    yield from _years(found)


def _each(found: re.Match[str]) -> Iterator[Edit]:
    """Read letters one by one, and digits, too, if there are more than three."""
    yield Edit(*found.span("letters"), " ".join(found["letters"]) + " ")
    if len(found["digits"]) > 3:
        yield from _digits(found)


def _isbn(found: re.Match[str]) -> Iterator[Edit]:
    """Read the digits of a book's number one by one, and an X behind them."""
    yield from _digits(found)
    if found["check"]:
        yield Edit(*found.span("check"), " X")


def _ratio(found: re.Match[str]) -> Iterator[Edit]:
    """Read "16:9" as "16 to 9" unless it may be a time, and "48:07" as minutes and seconds."""
    first, second = found[1], found[2]
    text, start = found.string, found.start()
    ratio = _SCREEN.match(text, found.end()) or _RATIO.search(text[max(0, start - 20) : start])
    if len(second) != 2 or int(second) > 59 or ratio or int(first) + int(second) == 100:
        yield Edit(*found.span(), f"{first} to {second}")
    elif int(first) > 24:
        low = "minutes" if second == "00" else f"oh {second[1]}" if second[0] == "0" else second
        yield Edit(*found.span(), f"{first} {low}")


def _measure(found: re.Match[str]) -> Iterator[Edit]:
    """Read a unit where the library doesn't: after a fraction, and "tsp" after a word."""
    sign = found["sign"]
    word = _WORDS["measures"].get(sign) or _WORDS["measures"][sign.lower()]
    several = "feet" if word == "foot" else f"{word}s"
    many = found["many"] or found["unit"].rstrip(".") != sign
    yield Edit(*found.span("unit"), several if many else word)


def _inch(found: re.Match[str]) -> Iterator[Edit]:
    """Read ``13" pan`` as "13 inch pan", where the sign doesn't close a quotation."""
    if found["sign"] != '"' or len(re.findall(r'(?<![\d½¼¾])"', found.string)) % 2 == 0:
        yield Edit(*found.span("sign"), " inch")


def _ordinal(number: int) -> str:
    return str(rules.numerals("en").ordinal(number))


def _team(number: str) -> str:
    """Read the number in "49ers"."""
    said = str(rules.numerals("en").cardinal(int(number)))
    return said.removesuffix("e") if said.endswith("e") else said


def _span(found: re.Match[str]) -> Iterator[Edit]:
    """Read the dash of "3 - 5 days" as "to", where it isn't the minus of a sum."""
    first, second = (found[group].rstrip(".,:") for group in ("first", "second"))
    if (
        ":" in first
        or found["unit"]
        or found["score"]
        or (not found["sum"] and _amount(first) < _amount(second))
    ):
        yield Edit(*found.span("dash"), " to ")


def _amount(number: str) -> float:
    return float(number.replace(",", "").split(":")[0].rstrip(".")) if number.count(".") < 2 else 0


_SPEAK: dict[str, rules.Speak] = {
    "aircraft": _aircraft,
    "by": rules.say(" by ", "sign"),
    "count of": rules.say(lambda number: str(rules.numerals("en").cardinal(int(number))), "number"),
    "inch": _inch,
    "isbn": _isbn,
    "less": rules.say("less than ", "sign"),
    "more": rules.say("more than ", "sign"),
    "pair": rules.say(lambda numbers: numbers.replace("-", " "), 1),
    "out of": rules.say(" out of ", "sign"),
    "span": _span,
    "team": rules.say(_team),
    "to": rules.say(" to ", "dash"),
    "count": rules.say(lambda numeral: str(rules.value_of(numeral)), "roman"),
    "date": _date,
    "decade": rules.say(lambda years: rules.numerals("en").decade(int(years[:-1]))),
    "digits": _digits,
    "fahrenheit": rules.say(" degrees Fahrenheit", "sign"),
    "fraction": rules.fraction(" and "),
    "letters": _each,
    "measure": _measure,
    "month": _month,
    "ordinal": rules.say(lambda numeral: _ordinal(rules.value_of(numeral)), "roman"),
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
        (_SHORT, partial(_short_date, day_first=day_first)),
        (r"[₀-₉]", rules.say(rules.plain_digit)),
        *rules.everywhere("en", "", " and {} seconds", "times"),
        *rules.rows("en", _SPEAK),
    )
