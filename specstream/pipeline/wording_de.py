"""German rules and words that `specstream.pipeline.wording` needs in addition to the library's."""

from __future__ import annotations

import re
from collections.abc import Iterator

from specstream.pipeline import wording_de_numbers as numbers
from specstream.pipeline import wording_rules as rules
from specstream.pipeline.mapped import Edit

__all__ = ["GERMAN"]

_WORDS = rules.words("de")
_SHORT_MONTHS, _DAYS, _PLACES = _WORDS["short_months"], _WORDS["days"], _WORDS["places"]
_COINS, _SCALES = _WORDS["coins"], _WORDS["scales"]
_SHORT_MONTH, _DAY = rules.any_of(_SHORT_MONTHS), rules.any_of(_DAYS)
_PHONE = (
    r"(?<![\w.,/+-])(?P<digits>(?:\+\d{1,3}[ -]?|0)\d{2,4}[ /-]\d{3,}(?:[ -]\d{2,})*)(?!\w|[.,]\d)"
)
_NUMERAL = "X{0,2}(?:IX|IV|VI{0,3}|I{1,3})|X{1,2}"


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
    word = _SCALES[found["scale"]][0 if alone else 1] + " " * bool(coin)
    yield Edit(found.start("scale"), found.start("coin") if coin else found.end(), word)
    if coin:
        yield Edit(*found.span("coin"), _COINS[coin])


def _iso_date(found: re.Match[str]) -> Iterator[Edit]:
    year, month, day = (int(found[group]) for group in ("year", "month", "day"))
    if 1 <= month <= 12 and 1 <= day <= 31:
        article = {"": "", "bis": "zum "}.get((found["lead"] or "").lower(), "dem ")
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


_century = rules.say(lambda hundreds: numbers.cardinal(int(hundreds)) + "hundert ")

# fmt: off
GERMAN: tuple[rules.Row, ...] = (
    (rules.address("de|at|ch|com|org|net|eu"), rules.link(_WORDS["signs"])),
    *rules.everywhere("de", " Uhr", " und {} Sekunden", "mal"),
    (_PHONE, rules.each_digit("de")),
    # dates and times
    (
        r"(?:\b(?P<lead>(?i:seit|vor|nach|von|ab|zwischen|bis)) |(?<![\w/.-]))"
        r"(?P<date>(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d))(?![\w/-]|\.\d)",
        _iso_date,
    ),
    (r"(?<![\w.])(\d{1,2})\. (\d{1,2})\. ?(?=\d{4}\b)", r"\1.\2."),
    (
        r"(?<![\w.])(?P<day>0?[1-9]|[12]\d|3[01])\. ?(?P<month>0?[1-9]|1[0-2])\. ?"
        r"(?P<year>\d\d)(?!\w|[.,:]\d| Uhr)",
        _short_date,
    ),
    (rf"(?<=\d\. )(?P<month>(?:{_SHORT_MONTH})\b(?:\.(?!\s*$))?)", _SHORT_MONTHS),
    (r"(?<![\d:])([01]\d|2[0-4]):([0-5]\d):([0-5]\d)(?![\d:])(?: Uhr)?", r"\1:\2 Uhr und \3 Sekunden"),
    (r"(?<![\w.,])(\d{1,2})\.(?=[0-5]\d Uhr)", r"\1:"),
    (r"(?:(?<=\bdes \d\. )|(?<=\bdes \d\d\. ))Jh\.(?!\s*$)", "Jahrhunderts"),
    # ranges, decades and ordinals
    (r"(?<=\d)(?:\s?[–—]\s?|(?<!\d-\d)-)(?=\d+(?![\d-]*-\d))", " bis "),
    (r"(?<=\d\.)\s?[–—-]\s?(?=\d+\.\s)", " bis "),
    (r"(?<=\d\.)\s?/\s?(?=\d+\.\s)", " und "),
    (r"(?<![\d,.])1[1-9](?=[2-9]0ern?\b)", _century),
    (r"(?<![\w,.])\d{1,4}(?=er[ns]?\b)", rules.say(numbers.decade)),
    (r"(?<![\w.,:/-])(?P<number>\d{1,4}|\d{1,3}\.\d{3})\.(?!\d)", numbers.ordinal),
    # fractions, ratios and products
    (r"(?<![\d/.,])(\d+) 1/2(?![\d/])", r"\1½"),
    (r"(?<![\d/.,])(\d+) 3/4(?![\d/])", r"\1¾"),
    rules.fraction(" "),
    numbers.RATIO,
    # the library takes "am" after a number for "a.m."
    (r"(?<=\d:[0-5]\d)(?= am\b)", " Uhr"),
    (r"(?<![\w.,:/-])\d{1,2}(?= am\b)", rules.say(lambda number: numbers.cardinal(int(number)))),
    (r"(?<=\d)\s?[x×]\s?(?=\d)", " mal "),
    numbers.TIMES,
    (r"(?<=\d) ?l/100 ?km\b", " Liter auf 100 km"),
    # versions, pages and amounts
    (r"\bv\.? ?(?=\d+\.\d)", "Version "),
    (
        r"(?:(?P<label>\b(?:Version|Kapitel|Abschnitt|Punkt|Ziffer|Abbildung|Tabelle) )|(?<![\w.,-]))"
        r"(?P<version>\d+(?:\.\d+){2,})(?!\w|[.,]?\d)",
        _points,
    ),
    (
        r"\b(?P<label>Version|Release|Kapitel|Abschnitt|Punkt|Abbildung|Tabelle|Nummer|Python|Windows"
        r"|Android|Java|Bluetooth|Ubuntu|Kernel"
        r"|(?!EUR|CHF|USD|GBP)[a-z]*[A-Z]{2,})[ -](?P<version>\d{1,2}\.\d{1,2})(?!\w|[.,]?\d)(?! Uhr)",
        _points,
    ),
    (r"(?<![\w.,])(\d+)\.(\d\d?)(?![\w.]|,\d)(?! Uhr)", r"\1,\2"),
    (r"(?<![\w.])(\d+,\d\d) Euro\b", r"\1 €"),
    (r"(?<=\bAbs\. )(\d+[a-z]?) S\. ?(?=\d)", r"\1 Satz "),
    (rf"\b(?P<place>(?:{rules.any_of(_PLACES)})\. ?)(?=\d)", _PLACES),
    (r"(?<=\d )(?:ff\.|ff\b)", "fortfolgende"),
    (r"§§ ?(?=\d)", "Paragraphen "),
    (r"§ ?(?=\d)", "Paragraph "),
    (r"([$€£]) ?(\d[\d.,]* (?:Tsd|Mio|Mrd)\.)(?=\s*$)", r"\2 \1."),
    (r"([$€£]) ?(\d[\d.,]* (?:Tsd\.|Mio\.|Mrd\.|Millionen|Milliarden))", r"\2 \1"),
    (
        r"(?:(?<=\d )|(?<![\w.,])(?P<one>1) )(?P<scale>Tsd|Mio|Mrd)\b\.?(?: ?(?P<coin>[$€£]))?(?!\s*$)",
        _scaled,
    ),
    (r"(?:(?<=Millionen )|(?<=Milliarden ))(?P<coin>[$€£])", _COINS),
    (r"(?<=\b1 )Std\.", "Stunde"),
    (r"(?<=\b1 )Min\.", "Minute"),
    (r"(?<=\d )Min\.(?=\s\S)", "Minuten"),
    numbers.ONE,
    (r"(?<![\w.,-])1[1-9](?=(?!00)\d\d(?![\w,-]|\.\d))", _century),
    # days and rulers
    (rf"\b(?P<day>(?:{_DAY})\b\.?)(?=\s?[-–]\s?(?:{_DAY})\b)", _DAYS),
    (rf"(?:(?<=tag)|(?<=woch))\s?[-–]\s?(?=(?:{_DAY})\b)", " bis "),
    (rf"(?:(?<=tag bis )|(?<=woch bis ))(?P<day>(?:{_DAY})\b(?:\.(?!\s*$))?)", _DAYS),
    (rf"\b(?P<name>[A-ZÄÖÜ][a-zäöüß]+) (?P<roman>{_NUMERAL})(?P<dot>\.?)(?!\w)", numbers.ruler),
)
# fmt: on
