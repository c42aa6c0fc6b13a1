"""English rules and words that `specstream.pipeline.wording` needs in addition to the library's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from specstream.pipeline import wording_rules as rules
from specstream.pipeline.mapped import Edit

__all__ = ["english"]

_WORDS = rules.words("en")
_MONTHS: list[str] = _WORDS["months"].split()
_SHORT_MONTHS, _DAYS, _SCALES = _WORDS["short_months"], _WORDS["days"], _WORDS["scales"]
_CALCULATIONS, _MEASURES, _PER = _WORDS["calculations"], _WORDS["measures"], _WORDS["per"]

_MONTH = rules.any_of(_MONTHS)
_SHORT_MONTH = rules.any_of(_SHORT_MONTHS)
_DAY = rules.any_of(_DAYS)
_MEASURE = rules.any_of(_MEASURES)
_KING = rules.any_of(_WORDS["rulers"].split())
_PART = rules.any_of(_WORDS["parts"].split())
_DOMAINS = rules.any_of(_WORDS["domains"].split())
_FILES = "md|py|js|ts|txt|json|ya?ml|toml|csv|html?|css|pdf|png|jpe?g|mp[34]|wav|zip|exe|sh|cpp|rs"
_ADDRESS = rf"{rules.address(_DOMAINS)}|(?<![\w.@/-])[A-Za-z_][\w-]*\.(?:{_FILES})\b"
_ALONE = r"(?!\w|[.,:/-]\d)"  # after a number: nothing of it follows
_FREE = r"(?<![\w$€£.,/-])"  # before a number: it begins here
_PHONE = (
    r"(?<![\w.,/+-])(?P<digits>(?:\+?\d{1,3}[ .-])?(?:\(\d{3}\) ?|\d{3}[.-])\d{3}[ .-]\d{4}"
    r"|\+\d{1,3}(?:[ .-]\(?\d{2,5}\)?){2,5}|0\d{2,4}[ -]\d{3,4}[ -]\d{3,4}|555-\d{4}|\d{3}-0\d{3})"
)
_LONG_NUMBER = r"(?P<digits>(?:\d{4}[ -]){3}\d{1,4}|\d{5}-\d{4}|\d{3}-\d{2}-\d{4}|\d{10,})"
_CODE = (
    r"\b(?:(?i:ending|ends|end) (?:in|with)|(?i:(?:code|pin|zip|passcode|password|account|extension"
    r"|ext\.|confirmation|tracking|booking|reference|serial|routing)(?: (?:number|code))?(?: is)?)"
    r"|[A-Z]{2}(?= \d{5}(?!\d))):? #?(?P<digits>0\d+|\d{3,})"
)
_LETTERS = r"(?!(?:CO2|SO2|NO2|O2|O3|N2|H2|CH4|NH3)\b)(?P<letters>[A-Z]{1,4})(?P<digits>\d{1,5})"
_ISOTOPES = r"(?:U-23\d|C-1[1-4]|I-131|K-40)\b"  # the library takes "F-16" for fluorine
_YEAR = r"(?:1[1-9]\d\d|20\d\d)"
_YEAR_END = r"(?![\w-]|[.,]\d)"
_NO_AMOUNT = r"(?! ?[%°$€£]| (?:[a-z]+s|km|m|kg|g|mm|cm|mi|people|men|women|children)\b)"
_RANGE_BEGINS = r"(?:(?<=\d)|(?<=\d[ap]m)|(?<=\d [ap]m)|(?<=\d%))"
_RANGE_ENDS = r"(?=[$€£]?(?:[1-9]\d*|0[.,]\d+)(?![\d-]*-\d|\d* ?=))"
_UNITS = "lbs?|oz|ft|mi|min|mins|sec|secs|hr|hrs|yr|yrs|[Tt]bsp|[Tt]sp|gal"
_NUMERAL = r"(?=[IVXLC]{2})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})"
_SLASHED = r"(?<![\w/.-])(?P<month>\d{1,2})/(?P<day>\d{1,2})/(?P<year>\d{4}|\d{2})(?![\w/]|[.-]\d)"
_DAY_FIRST = ("gb", "uk", "au", "nz", "ie", "in", "za")
_KINDS = "[Tt]ype|[Cc]lass|[Pp]hase|[Ss]tage"

_MANY = "two|three|four|five|six|seven|eight|nine|ten|few|several|more|some"
_HEAPED = "(?:heaping|heaped|level|rounded|scant) "
_STOP = r"\b(?:\.(?=\s[a-z\d]|,))?"  # that of the abbreviation, not of the sentence

_AFTER_FRACTION = (
    r"(?:(?P<many>\d\s?[½¼¾]|\d (?:and )?\d+/\d+)|[½¼¾]|(?<![\d/])\d+/\d+)\s?"
    rf"(?P<unit>(?P<sign>{_MEASURE}|Tsp|Tbsp)s?{_STOP})"
)
_AFTER_WORD = (
    rf"(?:\b(?P<many>(?:{_MANY}) (?:{_HEAPED})?|(?:[2-9]|1[\d½¼¾])\S* {_HEAPED})|(?<![\d ]) |^)"
    rf"(?P<unit>(?P<sign>tsp|tbsp|Tsp|Tbsp)s?{_STOP})"
)

_SCREEN = re.compile(r" (?:ratio|aspect|screen|display|format|mix|split|odds|scale)\b")

_digits = rules.each_digit("en")
_decade = rules.say(lambda years: rules.numerals("en").decade(int(years[:-1])))
_reign = rules.say(lambda numeral: f"the {rules.value_of(numeral)}th", "roman")
_count = rules.say(lambda numeral: str(rules.value_of(numeral)), "roman")


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
    word = _MEASURES.get(sign) or _MEASURES[sign.lower()]
    several = "feet" if word == "foot" else f"{word}s"
    many = found["many"] or found["unit"].rstrip(".") != sign
    yield Edit(*found.span("unit"), several if many else word)


# fmt: off
_ROWS: tuple[rules.Row, ...] = (
    (r"[₀-₉]", rules.say(rules.plain_digit)),
    *rules.everywhere("en", "", " and {} seconds", "times"),
    # said digit by digit
    (_PHONE + _ALONE, _digits),
    (r"(?<![\w.,/+-])(?:1-(?P<area>[2-9]\d\d)-(?=\d?[A-Z]{2})|(?P<local>8(?:00|33|44|55|66|77|88)|555)-(?=[A-Z]{4}))"
     r"(?P<word>[A-Z\d]+(?:-[A-Z\d]+)*)\b", _vanity),
    (_FREE + _LONG_NUMBER + _ALONE, _digits),
    (_CODE + _ALONE, _digits),
    (r"\b(?i:call|dial|text) (?P<digits>[2-9]11|999|112|988)" + _ALONE, _digits),
    (r"(?<![\w.-])" + _LETTERS + _ALONE, _each),
    (rf"\b(?!{_ISOTOPES})([A-Z])-(?=\d+{_ALONE})", r"\1 "),
    # dates and times
    (rf"\b(?P<month>(?:{_SHORT_MONTH})\b\.?)(?=\s\d)", _SHORT_MONTHS),
    (rf"(?<=\d )(?P<month>(?:{_SHORT_MONTH})\b\.?)(?=\s[\da-z]|,)", _SHORT_MONTHS),
    (r"(?<![\w/.-])(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)(?![\w/-]|[.]\d)", _date),
    (rf"{_FREE}(?P<day>\d{{1,2}})\.(?P<month>\d{{1,2}})\.(?P<year>{_YEAR}){_ALONE}", _date),
    (rf"{_FREE}(?P<a>{_YEAR})(?= ?[-–—] ?{_YEAR}{_YEAR_END}|[-–]\d\d{_YEAR_END})", _years),
    (rf"(?<=\d) ?[-–—] ?(?P<a>{_YEAR}){_YEAR_END}", _to_year),
    (rf"\b(?:{_MONTH}) \d{{1,2}}(?:st|nd|rd|th)?, (?P<a>{_YEAR}){_YEAR_END}", _years),
    (rf"\((?P<a>{_YEAR})(?=[a-f]?\))", _years),
    (rf"\b(?:of|[Tt]he|[Bb]y) (?P<a>{_YEAR}){_YEAR_END}{_NO_AMOUNT}", _years),
    (r"(?<!\w)[2-9]0s\b", _decade),
    (r"(?<![\d:])(\d{1,2}):([0-5]\d):([0-5]\d)(?![\d:])", r"\1 \2 \3"),
    # amounts
    (r"[$€£]\d[\d.,]*(?P<scale>\s?(?:[KkMmBbT]|bn|mn|tn))\b", _SCALES),
    (r"(?<![\w.,])\d+(?:\.\d+)?(?P<scale>M)(?!\w)", _SCALES),
    (r"\b(?:US\$|USD ?)(?=\d)", "$"),
    (r"\b(EUR|GBP) ?(\d[\d,]*(?:\.\d+)?)", r"\2 \1"),
    (rf"(?<=\d)(?P<each>{rules.any_of(_PER)})\b", _PER),
    (r"(?<![\w.])(\d{1,2})['′’](\d{1,2})(?:[\"″”]|'')", r"\1 foot \2"),
    (r"(?<=\d )in\.(?=\s[a-z])", "inches"),
    (rf"(?<=\d )({_UNITS})\.(?=\s[a-z\d]|,)", r"\1"),
    (r"(?<=\d)[x×](?!10\^)(?=\d)", " by "),
    (r"(?<=\d)[x×](?= (?:(?:dai|week|month|year)ly|an?|per|the|as|more|less|"
     r"(?:fast|slow|larg|bigg|small|high|low|long|short|cheap|great|strong|bett)er)\b)", " times"),
    (r"~(?=[$€£]?\d)", "about "),
    # fractions, ranges and ratios
    (r"(?<![\d/])([1-9]0)/([1-9]0)(?![\d/])|(?<![\d/])(9)/(11)(?![\d/])", r"\1\3 \2\4"),
    (r"(?<![\d/])(1\d\d)/([4-9]\d|1\d\d)(?![\d/])", r"\1 over \2"),
    (r"(?<![\d/])(\d+(?:\.\d)?)/(10|100)(?![\d/]| of )", r"\1 out of \2"),
    (r"(?<![\d/])(\d+) 1/2(?![\d/])", r"\1½"),
    rules.fraction(" and "),
    (_AFTER_FRACTION, _measure),
    (r"(?<![\d/])(\d+) (?=\d{1,2}/\d{1,2}(?![\d/]))", r"\1 and "),
    (rf"{_RANGE_BEGINS}(?:\s?[–—]\s?|(?<!\d-\d)-){_RANGE_ENDS}", " to "),
    (r"(?<![\w:.])(\d{1,3}):(\d{1,3})(?=[\s.,;!?)]|$)(?! [ap]\.?m)", _ratio),
    (r"(?<=[\d)\]]) (?P<sign>[-−*/])(?= [\d(\[$€£])", _CALCULATIONS),
    (r"(?<=\d)-(?=\d+ ?=)", " minus "),
    (r"(?<=\d)\$(?![\w$])", " dollars"),
    (r"\bv(?=\d+\.\d)", "version "),
    (r"\bNo\. ?(?=\d)", "number "),
    (r"\bp\. ?(?=\d)", "page "),
    (r"§ ?(?=\d)", "section "),
    (r"(?<=\bBoeing )7(?=\d7\b)", "7 "),
    (_AFTER_WORD, _measure),
    # days and months, signs and names
    (rf"\b(?P<day>{_DAY})\b(?= ?[-–] ?(?:{_DAY})\b)", _DAYS),
    (rf"(?<=day) ?[-–] ?(?=(?:{_DAY})\b)", " to "),
    (rf"(?<=day to )(?P<day>{_DAY})\b", _DAYS),
    (rf"\b(?P<day>(?:{_DAY})\b\.?)(?=,? (?:{_SHORT_MONTH}|{_MONTH})\b)", _DAYS),
    (rf"\b(?P<month>(?:{_SHORT_MONTH})\.)(?=\s*$)", _SHORT_MONTHS),
    (r"(?<=[\w)\]²³%]) (?P<sign>[+=×÷])(?= [\w(\[$€£-])", _CALCULATIONS),
    (r"(?<![\w@.])@(?=\w)", "at "),
    (r"(?<= )@(?= )", "at"),
    (r"(?<![\w#&])#(?=[A-Za-z])", "hashtag "),
    (r"(?<=[A-Z])&(?=[A-Z])", " and "),
    (r"\bSt\.(?=\s+[A-Z][a-z])", "Saint"),
    (r"\bSt\.(?=\s+[a-z\d]|,)", "Street"),
    (r"(?<=[a-z] )St\.(?=\s*$)", "Street."),
    (rf"\b(?:{_KING}) (?P<roman>{_NUMERAL}|V)\b", _reign),
    (rf"\b(?:King|Queen|Pope) (?:{_KING}) (?P<roman>I)\b", _reign),
    (rf"\b(?i:{_PART}) (?P<roman>{_NUMERAL})\b", _count),
    (rf"\b[A-Z][a-z]+ (?P<roman>{_NUMERAL})\b", _count),
    (r"\b(?:Chapter|Part|Act|Scene|Volume|Book|Rocky|Super Bowl) (?P<roman>[VX])\b", _count),
    (r"\b(?:World War|(?:Chapter|Part|Act)(?= I[.,:;)])) (?P<roman>I)\b", _count),
    (rf"\b(?:{_KINDS}) (?P<roman>I)\b(?= (?:error|trial|stud|diabet|clinical|superno))", _count),
)
# fmt: on


def english(language: str) -> tuple[rules.Row, ...]:
    """Return the rows for English; for ``"en-gb"`` and the like, 3/4/2025 is the third of April."""
    day_first = language.partition("-")[2].startswith(_DAY_FIRST)
    return (
        (_ADDRESS, rules.link(_WORDS["signs"])),
        (_SLASHED, partial(_date, day_first=day_first)),
        *_ROWS,
    )
