"""German rules that `specstream.text.wording` needs in addition to the library's, numbers among them.

The rules and their words are in ``wording_de.toml``; here are the functions that they call.

The article or preposition before an ordinal decides its ending. The words of numbers are the library's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from specstream.text import rules
from specstream.text.marks import ORDINAL_LEADS, WORDS
from specstream.text.rules import Edit, numerals, value_of, words

__all__ = [
    "MONTHS",
    "cardinal",
    "decade",
    "german",
    "half",
    "indefinite",
    "one",
    "ordinal",
    "ruler",
    "times",
]

MONTHS: list[str] = words("de")["months"]

# Which ending an article or a preposition before the ordinal asks for.
_EN = frozenset("am im zum zur vom beim dem den des".split())
_E = frozenset("das die ins ans".split())
_DATIVE = frozenset("in an auf aus bei mit nach seit von zu ab vor unter während wegen laut".split())
_EIN = re.compile(r"(?:k?ein|[mds]ein|ihr|unse?r|eue?r)(e[mnrs]?)?")
_DIES = re.compile(r"(?:jed|dies|jen|welch)(e[mnrs]?)")
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
_TITLE = re.compile(r"(?:König|Kaiser|Zar|Herzog|Fürst|Prinz)(?:in|e?s)?|Prinzessin|Papst(?:es)?")
_RULER = re.compile(
    "(?:Ludwig|Heinrich|Karl|Friedrich|Wilhelm|Otto|Georg|Johannes|Paul|Pius|Benedikt|Franz|Leo|Elisabeth)s?"
)
_FEMALE = re.compile(r"\w+(?:in|prinzessin|a|beth)")
_VERBS = frozenset({"stelle", "reihe"})  # in a list, "1. Stelle den Ofen an"
_GOES_ON = re.compile(r"\s[a-zäöü]|,")
_AT_END = re.compile(r"\s*$")

_LABEL = re.compile(  # "Kapitel 1 Einleitung", and any noun within a sentence
    r"(?:[^\s.!?:] (?!Sie |Ihnen )[A-ZÄÖÜ][a-zäöüß]+|\bNr\."
    r"|\b(?:Kapitel|Teil|Tag|Platz|Nummer|Stufe|Gruppe|Zimmer"
    r"|Schritt|Band|Seite|Klasse|Phase|Akt|Szene|Frage|Aufgabe|Artikel|Absatz|Heft)) $"
)
_AFTER_DATIVE = re.compile(r"\b(?i:mit|nach|bei|von|zu|aus|seit|vor|in|ab|binnen) $")
# The endings of nine in ten feminine nouns, and frequent nouns without them, also at the end of a
# compound; the gender of others is not known.
_FEMININE = re.compile(
    r"(?!(?i:\w*(?:kaffee|tee|käse|name|junge|(?<!se)kunde|kollege|gebäude|gemüse))$)"
    r"\w+(?:e|ung|heit|keit|schaft|tät|ion|ik|in)"
    r"|\w*(?i:frau|person|mutter|tochter|schwester|nacht|stadt|hand|tür|zahl|nummer|zeit|fahrt"
    r"|antwort|nachricht|zwiebel)"
)
_MASCULINE = re.compile(r"\w*(?i:liter|meter|löffel|tag|monat|apfel|becher)|[ET]L")
_AFTER_ACCUSATIVE = re.compile(  # "Nimm 1/2 Liter"
    r"\b(?i:nimm|nehme[nt]?|gib|gebe[nt]?|gie(?:ß|ße|ßen)|kauf\w*|trink\w*|brauch\w*|bestell\w*"
    r"|hat|habe[nt]?|für|ohne|um)(?: (?:du|Sie|ich|wir|noch|etwa))? $"
)
_NEUTER = re.compile(
    r"Kilo|Kilogramm|Gramm|Pfund|Dutzend|Jahr|Glas|Blech|Brot|Prozent|\w+chen|Kind|Buch|Haus|Auto|Mal"
    r"|Konto|Tor|Spiel|Lied|Zimmer|Fach|Semester|Bier|Video|Bild|Treffen|Angebot|Ziel|Quartal"
)
_SPOONS = {"EL": "Esslöffel", "TL": "Teelöffel"}


def cardinal(number: int) -> str:
    """Return a number in words; one is "eins"."""
    return str(numerals("de").cardinal(number))


def _stem(number: int) -> str:
    """An ordinal without its ending."""
    return str(numerals("de").ordinal(number)).removesuffix("e")


def ordinal(found: re.Match[str]) -> Iterator[Edit]:
    """Read a number with a dot as an ordinal if the words around it say that it is one."""
    text, (start, end) = found.string, found.span()
    before = _EARLIER.sub("", text[max(0, start - _LONGEST_LEAD) : start])
    follow = _NEXT.match(text, end)
    noun, number = follow[1] if follow else "", int(found["number"].replace(".", ""))
    later = _LATER.match(text, end) if follow is None or not before.strip() else None
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
    return word[:1].isupper() and word.lower() in WORDS["german_openers"]


def _ending(before: str, noun: str) -> str:
    """The ending of an ordinal between two words; empty if it isn't one.

    The gender of a noun is not known: "ein 2. Kind" is read as "ein zweiter Kind".
    """
    words = before.split() if before[-1:].isspace() else [""]
    lead, earlier = words[-1].lower() if words else "", words[-2] if len(words) > 1 else ""
    if lead in _EN:
        return "en"
    if lead in _E:
        return "e"
    if lead == "der":  # feminine in "in der 2. Reihe" and "ein Schüler der 2. Klasse"
        of_a_noun = earlier.istitle() and earlier.isalpha() and len(words) > 2
        return "en" if of_a_noun or earlier.lower() in _DATIVE else "e"
    if found := _EIN.fullmatch(lead):
        return {None: "es" if _NEUTER.fullmatch(noun) else "er", "e": "e"}.get(found[1], "en")
    if found := _DIES.fullmatch(lead):
        dative = found[1] in ("em", "en") or (found[1] == "er" and earlier.lower() in _DATIVE)
        return "en" if dative else "e"
    if noun in MONTHS and lead in ("ab", "seit", "nach", "vor", "bis"):
        return "en" if lead == "bis" else "em"
    if noun[:1].isupper():  # a month in "1. Mai" is left to the library
        if not lead and noun.lower() in _VERBS:
            return ""
        counted = noun.lower() in WORDS["ordinal_nouns"] and noun not in MONTHS
        return "er" if counted or lead in ("in", "an") else ""
    agrees = _AGREES.search(noun) if lead.isalpha() else None
    return agrees[0] if agrees else "er" if lead == "als" and noun.islower() else ""


def ruler(found: re.Match[str]) -> Iterator[Edit]:
    """Read "Ludwig (der) XIV." as "Ludwig der Vierzehnte", and "Kapitel IV" as "Kapitel 4"."""
    text, name, roman = found.string, found["name"], found["roman"]
    words = text[max(0, found.start() - _LONGEST_LEAD) : found.start()].split()
    title = words.pop() if words and _TITLE.fullmatch(words[-1]) else ""
    written = found["article"] or ""
    if len(roman) == 1 and not (title or found["dot"]):
        return  # "Peter X" hides a name
    goes_on = found["dot"] and _GOES_ON.match(text, found.end()) and len(roman) > 1
    if name.lower() in ORDINAL_LEADS or not (title or goes_on or written or _RULER.fullmatch(name)):
        if len(roman) > 1:
            yield Edit(*found.span("roman"), str(value_of(roman)))
        return
    dative = words and words[-1].lower() in _DATIVE | _EN
    female = _FEMALE.fullmatch(title or name)
    article = ("der" if dative else "die") if female else ("dem" if dative else "der")
    ending = "en" if dative else "e"
    if written:
        ending = "en" if written not in ("der", "die") or (female and written == "der") else "e"
    end = found.end("roman") if _AT_END.match(text, found.end()) else found.end()
    said = f"{_stem(value_of(roman)).capitalize()}{ending}"
    yield Edit(found.start("roman"), end, said if written else f"{article} {said}")


def decade(digits: str) -> str:
    """Read the number of "2010er", "90ern" or "6er-Pack"."""
    number = int(digits)
    hundreds, rest = divmod(number, 100)
    if 11 <= hundreds < 20:  # years
        return cardinal(hundreds) + "hundert" + (cardinal(rest) if rest else "")
    said = cardinal(number)
    return said.removeprefix("ein") if number in (100, 1000) else said


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
        if _MASCULINE.fullmatch(noun) and _AFTER_ACCUSATIVE.search(before):
            word = "einen"
    yield Edit(*found.span("one"), word)
    if noun in _SPOONS:
        yield Edit(*found.span("noun"), _SPOONS[noun])


def half(found: re.Match[str]) -> Iterator[Edit]:
    """Read "1/2 Stunde" as "eine halbe Stunde"."""
    before, noun = found.string[max(0, found.start() - 30) : found.start()], found["noun"]
    word = found[1] or indefinite(before, feminine=_FEMININE.fullmatch(noun) is not None)
    if not found[1] and _MASCULINE.fullmatch(noun) and _AFTER_ACCUSATIVE.search(before):
        word = "einen"
    neuter = word.lower() == "ein" and _NEUTER.fullmatch(noun)
    ending = {"ein": "es" if neuter else "er", "eine": "e"}.get(word.lower(), "en")
    yield Edit(*found.span(), f"{word} halb{ending} {_SPOONS.get(noun, noun)}")


def indefinite(before: str, *, feminine: bool) -> str:
    """The indefinite article behind ``before``."""
    if _AFTER_DATIVE.search(before):
        return "einer" if feminine else "einem"
    return "eine" if feminine else "ein"


def times(found: re.Match[str]) -> Iterator[Edit]:
    """Read "3x täglich" as "3 mal täglich"."""
    if found[1] == "1":
        yield Edit(*found.span(1), "ein")
    yield Edit(*found.span(2), " mal")


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
        yield Edit(*found.span("one"), indefinite(before, feminine=True))
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
        yield Edit(*found.span("date"), f"{article}{day}. {MONTHS[month - 1]} {year}")


_DATED = re.compile(
    r"\b(?i:am|vom|zum|beim|den|dem|der|bis|seit|ab|von|nach|vor|zwischen|geb\.|geboren) $"
)


def _short_date(found: re.Match[str]) -> Iterator[Edit]:
    """Give "am 1.5.24" a year of four digits, which the library reads; "Python 3.5.24" is no date."""
    before = found.string[max(0, found.start() - 10) : found.start()]
    if not ("0" in (found["day"][0], found["month"][0]) or " " in found[0] or _DATED.search(before)):
        return
    century = 20 if int(found["year"]) < 50 else 19
    day, month = int(found["day"]), int(found["month"])
    yield Edit(*found.span(), f"{day}.{month}.{century}{found['year']}")


_SPEAK: dict[str, rules.Speak] = {
    "count": rules.say(lambda numeral: str(rules.value_of(numeral)), "roman"),
    "zu": rules.say(" zu ", "dash"),
    "to": rules.say(" bis ", "dash"),
    "cardinal": rules.say(lambda number: cardinal(int(number))),
    "century": rules.say(lambda hundreds: cardinal(int(hundreds)) + "hundert "),
    "decade": rules.say(decade),
    "digits": rules.each_digit("de"),
    "fraction": rules.fraction(" "),
    "half": half,
    "iso date": _iso_date,
    "one": one,
    "ordinal": ordinal,
    "points": _points,
    "ruler": ruler,
    "scaled": _scaled,
    "short date": _short_date,
    "times": times,
}


def german(language: str) -> tuple[rules.Row, ...]:
    """Return the rows for German, the same for all countries."""
    return (
        (rules.address(_WORDS["domains"]), rules.link(_WORDS["signs"])),
        *rules.everywhere("de", " Uhr", " und {} Sekunden", "mal"),
        *rules.rows("de", _SPEAK),
    )
