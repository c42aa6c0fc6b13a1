"""German rules that `specstream.text.wording` needs in addition to the library's.

The rules and their words are in ``wording_de.toml``; here are the functions that they call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from specstream.text import german_numbers as numbers, rules
from specstream.text.rules import Edit

__all__ = ["german"]

_WORDS = rules.words("de")


def _points(found: re.Match[str]) -> Iterator[Edit]:
    """Read the dots of a version or an address, which is neither a date nor a large number."""
    parts = [int(part) for part in found["version"].split(".")]
    date = len(parts) == 3 and 1 <= parts[0] <= 31 and 1 <= parts[1] <= 12 and parts[2] >= 1000
    if found["label"] or not (date or re.fullmatch(r"\d{1,3}(?:\.\d{3})+", found["version"])):
        for dot in re.finditer(r"\.", found["version"]):
            at = found.start("version") + dot.start()
            yield Edit(at, at + 1, " Punkt ")


def _scaled(found: re.Match[str]) -> Iterator[Edit]:
    """Read "3 Mrd. $" as "3 Milliarden Dollar"."""
    alone = found["one"]
    if alone:
        before = found.string[max(0, found.start() - 30) : found.start()]
        yield Edit(*found.span("one"), numbers.indefinite(before, feminine=True))
    coin = found["coin"] or ""
    word = _WORDS["scales"][found["scale"]][0 if alone else 1] + " " * bool(coin)
    yield Edit(found.start("scale"), found.start("coin") if coin else found.end(), word)
    if coin:
        yield Edit(*found.span("coin"), _WORDS["coins"][coin])


_ARTICLES = ("", "am", "vom", "zum", "dem")


def _iso_date(found: re.Match[str]) -> Iterator[Edit]:
    year, month, day = (int(found[group]) for group in ("year", "month", "day"))
    if 1 <= month <= 12 and 1 <= day <= 31:
        lead = (found["lead"] or "").lower()
        article = "zum " if lead == "bis" else "" if lead in _ARTICLES else "dem "
        yield Edit(*found.span("date"), f"{article}{day}. {numbers.MONTHS[month - 1]} {year}")


_DATED = re.compile(
    r"\b(?i:am|vom|zum|beim|den|dem|der|bis|seit|ab|von|nach|vor|zwischen|geb\.|geboren) $"
)


def _short_date(found: re.Match[str]) -> Iterator[Edit]:
    """Give "am 1.5.24" a year of four digits, which the library reads; "Python 3.5.24" is no date."""
    before = found.string[max(0, found.start() - 10) : found.start()]
    if not (
        "0" in (found["day"][0], found["month"][0]) or " " in found[0] or _DATED.search(before)
    ):
        return
    century = 20 if int(found["year"]) < 50 else 19
    day, month = int(found["day"]), int(found["month"])
    yield Edit(*found.span(), f"{day}.{month}.{century}{found['year']}")


_SPEAK: dict[str, rules.Speak] = {
    "count": rules.say(lambda numeral: str(rules.value_of(numeral)), "roman"),
    "zu": rules.say(" zu ", "dash"),
    "to": rules.say(" bis ", "dash"),
    "cardinal": rules.say(lambda number: numbers.cardinal(int(number))),
    "century": rules.say(lambda hundreds: numbers.cardinal(int(hundreds)) + "hundert "),
    "decade": rules.say(numbers.decade),
    "digits": rules.each_digit("de"),
    "fraction": rules.fraction(" "),
    "half": numbers.half,
    "iso date": _iso_date,
    "one": numbers.one,
    "ordinal": numbers.ordinal,
    "points": _points,
    "ruler": numbers.ruler,
    "scaled": _scaled,
    "short date": _short_date,
    "times": numbers.times,
}


def german(language: str) -> tuple[rules.Row, ...]:
    """Return the rows for German, the same for all countries."""
    return (
        (rules.address(_WORDS["domains"]), rules.link(_WORDS["signs"])),
        *rules.everywhere("de", " Uhr", " und {} Sekunden", "mal"),
        *rules.rows("de", _SPEAK),
    )
