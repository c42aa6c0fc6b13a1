"""German ordinals in the form that their sentence asks for: "im 2. Quartal", "Ludwig XIV.", "die 80er".

Which ending an ordinal has is decided by the article or preposition before it and, without one, by the
gender of the noun behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from specstream.pipeline.abbreviations import GERMAN_OPENERS, ORDINAL_LEADS, ORDINAL_NOUNS
from specstream.pipeline.mapped import Edit
from specstream.pipeline.wording_rules import value_of

__all__ = ["MONTHS", "cardinal", "decade", "in_words", "ordinal", "ruler"]

MONTHS = (
    "Januar Februar März April Mai Juni Juli August September Oktober November Dezember".split()
)
_ONES = (
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn"
    " sechzehn siebzehn achtzehn neunzehn"
).split()
_TENS = "- - zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()
_ODD_STEMS = {1: "erst", 3: "dritt", 7: "siebt", 8: "acht"}

_WEAK = frozenset("am im zum zur vom beim dem den des".split())
_DATIVE = frozenset(
    "in an auf aus bei mit nach seit von zu ab vor unter während wegen laut je".split()
)
_ACCUSATIVE = frozenset("bis für gegen ohne durch um".split())
_EIN = re.compile(r"(?:k?ein|[mds]ein|ihr|unse?r|eue?r)(e[mnrs]?)?")
_DIES = re.compile(r"(?:jed|dies|jen|welch)(e[mnrs]?)")
_MASCULINE = frozenset(
    "weltkrieg stock platz tag jahrestag geburtstag spieltag advent preis rang fc".split()
)
_FEMININE = frozenset(
    "klasse etage liga bundesliga halbzeit runde etappe auflage generation instanz stelle reihe"
    " ordnung staffel sinfonie symphonie".split()
)
_VERBS = frozenset({"stelle", "reihe"})  # in a list, "1. Stelle den Ofen an"
_GENITIVE = frozenset("jahrhunderts weltkriegs grades".split())
_NEUTER = re.compile(
    r"\w*(?:chen|lein|um|ment|haus|jahr|hundert|tausend|kind|mal|tor|spiel|buch|bild|auto|leben|date"
    r"|quartal|semester|kapitel|zimmer|ziel|problem|team|foto|konzert|land|lied|heft|stück|wort|projekt"
    r"|rennen|essen|treffen|gespräch|geschenk|angebot|werk|wochenende|bier|glas|fach|gebot|gesetz|pferd"
    r"|ergebnis|ereignis|zeichen|auge|ohr|bein|produkt|thema|paar|blatt|schiff|dorf|geschäft|mitglied|tier"
    r"|gerät|handy|video|gedicht|baby|studium|interview|training|urteil|programm|modell|system|mädchen)"
)
_AGREES = re.compile(r"(?<=\w\w)e[mnrs]?$")  # "als 1. deutsche Stadt"
_EARLIER = re.compile(r"(?:\d+\.\s*(?:und|oder|bis|sowie|,|-|–|/)\s*)+$")
_LATER = re.compile(  # "1. bis 3. Mai"
    r"(?:\s?(?:,|und|oder|bis|sowie|[-–/])\s?\d+\.)+\s+([A-ZÄÖÜ]\w+)"
)
_NEXT = re.compile(r"\s+[„“\"»(]?([^\W\d_]+)")
_ALONE = re.compile(r"\b(?i:am|vom|zum|beim|dem|den|der)\s$")  # "Heute ist der 25."
_PLURAL = re.compile(  # "einer der 3", "mit den 3"
    r"\b(?i:k?ein\w*|jed\w*|welch\w*|beide|einige|alle|zwei|mit|von|bei|zu|aus|unter|nach) "
    r"(?:der|den)\s$"
)
_LONGEST_LEAD = 60  # characters before a number that may decide its ending

_TITLE = re.compile(
    r"(?:König|Kaiser|Zar|Herzog|Fürst|Prinz)(?:in|e?s)?|Gr[aä]f(?:in)?|Prinzessin|Papst(?:es)?|Pharao"
)
_FEMALE = re.compile(r"\w+(?:in|prinzessin|a|abeth|[gr]ethe|trix)s?")
_RULER = re.compile(
    "(?:Elizabeth|Ludwig|Heinrich|Karl|Friedrich|Wilhelm|Otto|Georg|Johannes|Johann|Paul|Pius|Benedikt|Franz|Leo"
    "|Elisabeth|Katharina|Nikolaus|Alexander|Peter|Philipp|Gregor|Innozenz|Clemens|Leopold|Ferdinand"
    "|Maximilian|Rudolf|Joseph|Josef|Eduard|Richard|Jakob|Napoleon|Ramses|Gustav|Harald|Konrad|August"
    "|Margrethe|Charles|Albert|Albrecht|Alfons|Christian|Urban|Julius)s?"
)
_LABELS = frozenset(
    "Kapitel Teil Band Akt Szene Buch Stufe Phase Typ Klasse Artikel Abschnitt Weltkrieg".split()
)
_GOES_ON = re.compile(r"\s[a-zäöü]|,")
_AT_END = re.compile(r"\s*$")
_GENITIVE_NAME = re.compile(r"\w+(?<![uein]s)(?<=s)")


def cardinal(number: int) -> str:
    """Return a number below a million in words; one is "eins"."""
    high, low = divmod(number, 1000)
    if high:
        return _before(cardinal(high)) + "tausend" + (cardinal(low) if low else "")
    hundreds, rest = divmod(number, 100)
    if hundreds:
        return _before(_ONES[hundreds]) + "hundert" + (cardinal(rest) if rest else "")
    if rest < 20:
        return _ONES[rest]
    tens, ones = divmod(rest, 10)
    return (_before(_ONES[ones]) + "und" if ones else "") + _TENS[tens]


def _before(word: str) -> str:
    """A number word as it stands within a longer one: "ein" for "eins"."""
    return word[:-1] if word.endswith("eins") else word


def _stem(number: int) -> str:
    """An ordinal without its ending."""
    rest = number % 100
    if not 0 < rest < 20:
        return cardinal(number) + "st"
    high = cardinal(number - rest) if number > rest else ""
    return high + _ODD_STEMS.get(rest, _ONES[rest] + "t")


def ordinal(found: re.Match[str]) -> Iterator[Edit]:
    """Read a number with a dot as an ordinal if the words around it say that it is one."""
    text, (start, end) = found.string, found.span()
    before = _EARLIER.sub("", text[max(0, start - _LONGEST_LEAD) : start])
    follow = _NEXT.match(text, end)
    noun, number = follow[1] if follow else "", int(found["number"].replace(".", ""))
    later = None if before.strip() else _LATER.match(text, end)
    if later:
        noun = later[1]
    elif (follow is None and text[end : end + 1] not in tuple("-–/")) or _opens(noun):
        if _ALONE.search(before) and not _PLURAL.search(before):
            dot = end if text[end : end + 1] == "," else end - 1
            yield Edit(start, dot, _stem(number) + _ending(before, ""))
        return  # "Sie kommt am 3."
    if ending := _ending(before, noun) or ("er" if later and noun in MONTHS else ""):
        yield Edit(start, end, _stem(number) + ending)


def _opens(word: str) -> bool:
    """Whether a word with a capital opens a sentence."""
    return word[:1].isupper() and word.lower() in GERMAN_OPENERS


def _ending(before: str, noun: str) -> str:
    """The ending of an ordinal between two words; empty if it isn't one."""
    words = before.split() if before[-1:].isspace() else [""]
    lead, earlier = words[-1].lower() if words else "", words[-2] if len(words) > 1 else ""
    low = noun.lower()
    if lead in _WEAK or low in _GENITIVE:
        return "en"
    if lead in ("das", "die", "ins", "ans"):
        return "e"
    if lead == "der":  # feminine in "in der 2. Reihe" and "ein Schüler der 2. Klasse"
        of_a_noun = earlier.istitle() and earlier.isalpha() and len(words) > 2
        return "en" if of_a_noun or earlier.lower() in _DATIVE else "e"
    if found := _EIN.fullmatch(lead):
        return {None: "es" if _NEUTER.fullmatch(low) else "er", "e": "e"}.get(found[1], "en")
    if found := _DIES.fullmatch(lead):
        dative = found[1] in ("em", "en") or (found[1] == "er" and earlier.lower() in _DATIVE)
        return "en" if dative else "e"
    if noun[:1].isupper():
        return "" if not lead and low in _VERBS else _strong(lead, noun)
    agrees = _AGREES.search(noun) if lead.isalpha() else None
    return agrees[0] if agrees else ""


def _strong(lead: str, noun: str) -> str:
    """The ending without an article before a noun that is often counted; a month is left alone."""
    low = noun.lower()
    if noun in MONTHS:
        return "en" if lead in _DATIVE | _ACCUSATIVE else ""
    feminine = low in _FEMININE
    if low not in ORDINAL_NOUNS:
        return "er" if lead in ("in", "an") else ""
    if lead in _DATIVE:
        return "er" if feminine else "em"
    if feminine:
        return "e"
    if low not in _MASCULINE:
        return "es"
    return "en" if lead in _ACCUSATIVE else "er"


def ruler(found: re.Match[str]) -> Iterator[Edit]:
    """Read "Ludwig XIV." as "Ludwig der Vierzehnte" in its case, and "Kapitel IV" as "Kapitel 4"."""
    text, name, roman = found.string, found["name"], found["roman"]
    words = text[max(0, found.start() - _LONGEST_LEAD) : found.start()].split()
    title = words.pop() if words and _TITLE.fullmatch(words[-1]) else ""
    if len(roman) == 1 and not (title or found["dot"]):
        return  # "Peter X" hides a name
    goes_on = found["dot"] and _GOES_ON.match(text, found.end()) and len(roman) > 1
    if (
        name in _LABELS
        or name.lower() in ORDINAL_LEADS
        or not (title or goes_on or _RULER.fullmatch(name))
    ):
        if len(roman) > 1:
            yield Edit(*found.span("roman"), str(value_of(roman)))
        return
    lead, female = words[-1].lower() if words else "", bool(_FEMALE.fullmatch(title or name))
    article = _article(lead, female=female, genitive=_GENITIVE_NAME.fullmatch(name) is not None)
    ending = "e" if article == ("die" if female else "der") else "en"
    end = found.end("roman") if _AT_END.match(text, found.end()) else found.end()
    yield Edit(
        found.start("roman"), end, f"{article} {_stem(value_of(roman)).capitalize()}{ending}"
    )


def _article(lead: str, *, female: bool, genitive: bool) -> str:
    if female:
        dative = lead in _DATIVE | _WEAK or lead == "der"
        return "der" if genitive or dative else "die"
    if genitive or lead == "des":
        return "des"
    return "dem" if lead in _DATIVE | _WEAK else "den" if lead in _ACCUSATIVE else "der"


def in_words(found: re.Match[str]) -> Iterator[Edit]:
    """Read a number as it is counted."""
    yield Edit(*found.span("number"), cardinal(int(found["number"])))


def decade(found: re.Match[str]) -> Iterator[Edit]:
    """Read "2010er" and "90ern", and numbers such as that of a "6er-Pack"."""
    number = int(found["number"])
    hundreds, rest = divmod(number, 100)
    said = cardinal(number)
    if 11 <= hundreds < 20:  # years
        said = cardinal(hundreds) + "hundert" + (cardinal(rest) if rest else "")
    elif number in (100, 1000):
        said = said.removeprefix("ein")
    yield Edit(*found.span("number"), said)
