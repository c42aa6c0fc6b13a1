"""English rules and words that `specstream.pipeline.wording` needs in addition to the library's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from specstream.pipeline.mapped import Edit
from specstream.pipeline.wording_en_measures import AFTER_FRACTION, AFTER_WORD, measure
from specstream.pipeline.wording_rules import (
    FRACTION,
    HEXADECIMAL,
    SCIENTIFIC,
    TIMESTAMP,
    Speak,
    Vocabulary,
    address,
    each_digit,
    each_sign,
    fraction,
    link,
    look_up,
    plain_digit,
    power,
    roman,
    rule,
    timestamp,
)

__all__ = ["english"]

_SIGNS = {
    ".": "dot", "/": "slash", "@": "at", "-": "dash", "_": "underscore", ":": "colon", "&": "and",
    "?": "question mark", "=": "equals", "#": "hash", "~": "tilde", "%": "percent", "+": "plus",
}  # fmt: skip
_MONTHS = (
    "January February March April May June July August September October November December".split()
)
_SHORT_MONTHS = {month[:3]: month for month in _MONTHS} | {"Sept": "September"}
_DAYS = {
    "Mon": "Monday", "Tue": "Tuesday", "Tues": "Tuesday", "Wed": "Wednesday", "Thu": "Thursday",
    "Thur": "Thursday", "Thurs": "Thursday", "Fri": "Friday", "Sat": "Saturday", "Sun": "Sunday",
}  # fmt: skip
_SCALES = {"K": "thousand", "k": "thousand", "M": "million", "m": "million", "mn": "million"} | {
    "B": "billion", "b": "billion", "bn": "billion", "T": "trillion", "tn": "trillion",
}  # fmt: skip
_DECADES = {
    "20s": "twenties", "30s": "thirties", "40s": "forties", "50s": "fifties", "60s": "sixties",
    "70s": "seventies", "80s": "eighties", "90s": "nineties",
}  # fmt: skip
_OPERATORS = {
    "+": "plus", "=": "equals", "×": "times", "*": "times", "÷": "divided by", "/": "divided by",
    "-": "minus", "−": "minus",
}  # fmt: skip

_MONTH = "|".join(_MONTHS)
_SHORT_MONTH = "|".join(sorted(_SHORT_MONTHS, key=len, reverse=True))
_DAY = "|".join(sorted(_DAYS, key=len, reverse=True))
_DOMAINS = "com|org|net|io|ai|dev|app|edu|gov|co|info|uk|de|eu|fr|ca|us|tv"
_FILES = "md|py|js|ts|txt|json|ya?ml|toml|csv|html?|css|pdf|png|jpe?g|mp[34]|wav|zip|exe|sh|cpp|rs"
_ADDRESS = rf"{address(_DOMAINS)}|(?<![\w.@/-])[A-Za-z_][\w-]*\.(?:{_FILES})\b"
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
_EACH = "month|mo|year|yr|week|day|hour|hr|night|person|user|minute|kg|lb"
_LONG = {"mo": "month", "yr": "year", "hr": "hour", "kg": "kilogram", "lb": "pound"}
_PER = {f"/{each}": f"per {_LONG.get(each, each)}" for each in _EACH.split("|")}
_NUMERAL = r"(?=[IVXLC]{2})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})"
_KINGS = (
    "Henry|Louis|Charles|George|Edward|Richard|William|James|Elizabeth|Mary|Catherine|Paul|Pius|Leo"
    "|Benedict|Francis|Philip|Napoleon|Nicholas|Alexander|Peter|Ivan|Frederick|Ferdinand|Ramses"
    "|Ptolemy|Otto|Wilhelm|Ludwig|Gustav|Christian|Innocent|Gregory|Clement|Urban|Carlos|Leopold"
    "|Alfonso|Robert|Darius|Mehmed|Selim|Margrethe|Harald|Olav|Haakon|Constantine"
)
_PARTS = (
    "chapter|part|act|scene|volume|book|phase|stage|type|class|section|article|title|tier|appendix"
    "|figure|table|category|level|round|episode|season"
)
_SLASHED = r"(?<![\w/.-])(?P<month>\d{1,2})/(?P<day>\d{1,2})/(?P<year>\d{4}|\d{2})(?![\w/]|[.-]\d)"
_DAY_FIRST = ("gb", "uk", "au", "nz", "ie", "in", "za")
_KINDS = "[Tt]ype|[Cc]lass|[Pp]hase|[Ss]tage"

_DIGITS = "zero one two three four five six seven eight nine"
_digits = each_digit(_DIGITS, "plus")


def _vanity(found: re.Match[str]) -> Iterator[Edit]:
    """Read "1-800-FLOWERS" as "one eight hundred Flowers"."""
    area = found["area"] or found["local"]
    said = _DIGITS.split()[int(area[0])] + " hundred"
    if not area.endswith("00"):
        said = " ".join(_DIGITS.split()[int(digit)] for digit in area)
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


_SCREEN = re.compile(r" (?:ratio|aspect|screen|display|format|mix|split|odds|scale)\b")


# fmt: off
_NUMBERS: tuple[tuple[str, str | Speak], ...] = (
    (r"(?![0-9])\d|[₀-₉]", plain_digit),
    (r"(?<=\d)[⁻⁰¹²³⁴-⁹]+", power),
    # said sign by sign or digit by digit
    (HEXADECIMAL, each_sign(_DIGITS)),
    (_PHONE + _ALONE, _digits),
    (r"(?<![\w.,/+-])(?:1-(?P<area>[2-9]\d\d)-(?=\d?[A-Z]{2})|(?P<local>8(?:00|33|44|55|66|77|88)|555)-(?=[A-Z]{4}))"
     r"(?P<word>[A-Z\d]+(?:-[A-Z\d]+)*)\b", _vanity),
    (_FREE + _LONG_NUMBER + _ALONE, _digits),
    (_CODE + _ALONE, _digits),
    (r"\b(?i:call|dial|text) (?P<digits>[2-9]11|999|112|988)" + _ALONE, _digits),
    (r"(?<![\w.-])" + _LETTERS + _ALONE, _each),
    (rf"\b(?!{_ISOTOPES})([A-Z])-(?=\d+{_ALONE})", r"\1 "),
    # dates and times
    (rf"\b(?P<month>(?:{_SHORT_MONTH})\b\.?)(?=\s\d)", look_up(_SHORT_MONTHS, "month")),
    (rf"(?<=\d )(?P<month>(?:{_SHORT_MONTH})\b\.?)(?=\s[\da-z]|,)", look_up(_SHORT_MONTHS, "month")),
    (TIMESTAMP, timestamp("", " and {} seconds")),
    (r"(?<![\w/.-])(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)(?![\w/-]|[.]\d)", _date),
    (rf"{_FREE}(?P<day>\d{{1,2}})\.(?P<month>\d{{1,2}})\.(?P<year>{_YEAR}){_ALONE}", _date),
    (rf"{_FREE}(?P<a>{_YEAR})(?= ?[-–—] ?{_YEAR}{_YEAR_END}|[-–]\d\d{_YEAR_END})", _years),
    (rf"(?<=\d) ?[-–—] ?(?P<a>{_YEAR}){_YEAR_END}", _to_year),
    (rf"\b(?:{_MONTH}) \d{{1,2}}(?:st|nd|rd|th)?, (?P<a>{_YEAR}){_YEAR_END}", _years),
    (rf"\((?P<a>{_YEAR})(?=[a-f]?\))", _years),
    (rf"(?<=\bof )(?P<a>{_YEAR}){_YEAR_END}{_NO_AMOUNT}", _years),
    (rf"(?<=\b[Tt]he )(?P<a>{_YEAR}){_YEAR_END}{_NO_AMOUNT}", _years),
    (rf"(?<=\b[Bb]y )(?P<a>{_YEAR}){_YEAR_END}{_NO_AMOUNT}", _years),
    (r"(?<!\w)(?P<decade>[2-9]0s)\b", look_up(_DECADES, "decade")),
    (r"(?<![\d:])(\d{1,2}):([0-5]\d):([0-5]\d)(?![\d:])", r"\1 \2 \3"),
    # amounts
    (r"[$€£]\d[\d.,]*(?P<scale>\s?(?:[KkMmBbT]|bn|mn|tn))\b", look_up(_SCALES, "scale")),
    (r"(?<![\w.,])\d+(?:\.\d+)?(?P<scale>M)(?!\w)", look_up(_SCALES, "scale")),
    (r"\b(?:US\$|USD ?)(?=\d)", "$"),
    (r"\b(EUR|GBP) ?(\d[\d,]*(?:\.\d+)?)", r"\2 \1"),
    (rf"(?<=\d)(?P<each>/(?:{_EACH}))\b", look_up(_PER, "each")),
    (r"(?<![\w.])(\d{1,2})['′’](\d{1,2})(?:[\"″”]|'')", r"\1 foot \2"),
    (r"(?<=\d )in\.(?=\s[a-z])", "inches"),
    (rf"(?<=\d )({_UNITS})\.(?=\s[a-z\d]|,)", r"\1"),
    (r"(?<=\d)[x×](?!10\^)(?=\d)", " by "),
    (r"(?<=\d)[x×](?= (?:(?:dai|week|month|year)ly|an?|per|the|as|more|less|"
     r"(?:fast|slow|larg|bigg|small|high|low|long|short|cheap|great|strong|bett)er)\b)", " times"),
    (r"~(?=[$€£]?\d)", "about "),
    (SCIENTIFIC, r"\1 times 10^\2\3"),
    # fractions, ranges and ratios
    (r"(?<![\d/])([1-9]0)/([1-9]0)(?![\d/])|(?<![\d/])(9)/(11)(?![\d/])", r"\1\3 \2\4"),
    (r"(?<![\d/])(1\d\d)/([4-9]\d|1\d\d)(?![\d/])", r"\1 over \2"),
    (r"(?<![\d/])(\d+(?:\.\d)?)/(10|100)(?![\d/]| of )", r"\1 out of \2"),
    (r"(?<![\d/])(\d+) 1/2(?![\d/])", r"\1½"),
    (FRACTION, fraction(" and ")),
    (AFTER_FRACTION, measure),
    (r"(?<![\d/])(\d+) (?=\d{1,2}/\d{1,2}(?![\d/]))", r"\1 and "),
    (rf"{_RANGE_BEGINS}(?:\s?[–—]\s?|(?<!\d-\d)-){_RANGE_ENDS}", " to "),
    (r"(?<![\w:.])(\d{1,3}):(\d{1,3})(?=[\s.,;!?)]|$)(?! [ap]\.?m)", _ratio),
    (r"(?<=[\d)\]]) (?P<sign>[-−*/])(?= [\d(\[$€£])", look_up(_OPERATORS, "sign")),
    (r"(?<=\d)-(?=\d+ ?=)", " minus "),
    (r"(?<=\d)\$(?![\w$])", " dollars"),
    (r"\bv(?=\d+\.\d)", "version "),
    (r"\bNo\. ?(?=\d)", "number "),
    (r"\bp\. ?(?=\d)", "page "),
    (r"§ ?(?=\d)", "section "),
    (r"(?<=\bBoeing )7(?=\d7\b)", "7 "),
)
_NAMES: tuple[tuple[str, str | Speak], ...] = (
    (AFTER_WORD, measure),
    # days and months, signs and names
    (rf"\b(?P<day>{_DAY})\b(?= ?[-–] ?(?:{_DAY})\b)", look_up(_DAYS, "day")),
    (rf"(?<=day) ?[-–] ?(?=(?:{_DAY})\b)", " to "),
    (rf"(?<=day to )(?P<day>{_DAY})\b", look_up(_DAYS, "day")),
    (rf"\b(?P<day>(?:{_DAY})\b\.?)(?=,? (?:{_SHORT_MONTH}|{_MONTH})\b)", look_up(_DAYS, "day")),
    (rf"\b(?P<month>(?:{_SHORT_MONTH})\.)(?=\s*$)", look_up(_SHORT_MONTHS, "month")),
    (r"(?<=[\w)\]²³%]) (?P<sign>[+=×÷])(?= [\w(\[$€£-])", look_up(_OPERATORS, "sign")),
    (r"(?<![\w@.])@(?=\w)", "at "),
    (r"(?<= )@(?= )", "at"),
    (r"(?<![\w#&])#(?=[A-Za-z])", "hashtag "),
    (r"(?<=[A-Z])&(?=[A-Z])", " and "),
    (r"\bSt\.(?=\s+[A-Z][a-z])", "Saint"),
    (r"\bSt\.(?=\s+[a-z\d]|,)", "Street"),
    (r"(?<=[a-z] )St\.(?=\s*$)", "Street."),
    (rf"\b(?:{_KINGS}) (?P<roman>{_NUMERAL}|V)\b", roman("the {}th".format)),
    (rf"\b(?:King|Queen|Pope) (?:{_KINGS}) (?P<roman>I)\b", roman("the {}th".format)),
    (rf"\b(?i:{_PARTS}) (?P<roman>{_NUMERAL})\b", roman(str)),
    (rf"\b[A-Z][a-z]+ (?P<roman>{_NUMERAL})\b", roman(str)),
    (r"\b(?:Chapter|Part|Act|Scene|Volume|Book|Rocky|Super Bowl) (?P<roman>[VX])\b", roman(str)),
    (r"\b(?:World War|(?:Chapter|Part|Act)(?= I[.,:;)])) (?P<roman>I)\b", roman(str)),
    (rf"\b(?:{_KINDS}) (?P<roman>I)\b(?= (?:error|trial|stud|diabet|clinical|superno))", roman(str)),
)
# fmt: on


def english(language: str) -> Vocabulary:
    """Return the vocabulary of English; for ``"en-gb"`` and the like, 3/4/2025 is the third of April."""
    day_first = language.partition("-")[2].startswith(_DAY_FIRST)
    date = rule(_SLASHED, partial(_date, day_first=day_first), digits=True)
    return Vocabulary(
        (
            rule(_ADDRESS, link(_SIGNS)),
            date,
            *(rule(*row, digits=True) for row in _NUMBERS),
            *(rule(*row) for row in _NAMES),
        ),
        abbreviations={
            "Ave.": "Avenue", "Blvd.": "Boulevard", "Rd.": "Road", "Mt.": "Mount", "Gov.": "Governor",
            "Sen.": "Senator", "Rep.": "Representative", "Gen.": "General", "Col.": "Colonel",
            "Capt.": "Captain", "Sgt.": "Sergeant", "Lt.": "Lieutenant", "Rev.": "Reverend",
            "Corp.": "Corporation", "ext.": "extension", "Ext.": "extension", "w/": "with",
            "w/o": "without", "and/or": "and or", "he/she": "he or she", "his/her": "his or her",
            "A/C": "A C", "N/A": "not applicable", "Ph.D.": "P H D",
        },
        units={
            "mph": ("mile per hour", "miles per hour"), "lbs": ("pound", "pounds"),
            "hr": ("hour", "hours"), "hrs": ("hour", "hours"), "yrs": ("year", "years"),
            "mins": ("minute", "minutes"), "sec": ("second", "seconds"), "secs": ("second", "seconds"),
            "sq ft": ("square foot", "square feet"), "sqft": ("square foot", "square feet"),
            "sq mi": ("square mile", "square miles"), "sq m": ("square meter", "square meters"),
            "ft²": ("square foot", "square feet"), "gal": ("gallon", "gallons"),
            "tbsp": ("tablespoon", "tablespoons"), "tsp": ("teaspoon", "teaspoons"),
            "Tbsp": ("tablespoon", "tablespoons"), "Tsp": ("teaspoon", "teaspoons"),
            "fl oz": ("fluid ounce", "fluid ounces"), "psi": ("P S I", "P S I"),
            "kbps": ("kilobit per second", "kilobits per second"),
            "Mbps": ("megabit per second", "megabits per second"),
            "Gbps": ("gigabit per second", "gigabits per second"),
            "MB/s": ("megabyte per second", "megabytes per second"),
            "ha": ("hectare", "hectares"), "¢": ("cent", "cents"), "Kcal": ("calorie", "calories"),
        },
        currencies={
            "₹": (("rupee", "rupees"), ("paisa", "paise")), "CHF": (("franc", "francs"), None),
            "A$": (("Australian dollar", "Australian dollars"), ("cent", "cents")),
        },
    )  # fmt: skip
