"""German numbers that depend on their sentence: "1" before a noun, and scores, which look like times."""

from __future__ import annotations

import re
from collections.abc import Iterator

from specstream.pipeline.mapped import Edit

__all__ = ["ONE", "RATIO", "TIMES", "indefinite", "one", "ratio", "times"]

ONE = (
    r"(?<![\w.,:/-])(?P<one>1)(?= (?!aber|oder|unter|über|hinter|wieder|Punkt \d)"
    r"(?:(?P<adjective>[a-zäöüß]+e[nrs]?) )?(?P<noun>[A-ZÄÖÜ][a-zäöüß]+))"
)
RATIO = r"(?<![\w:.,])(\d{1,3}):(\d{1,3}(?:\.\d{3})*|\d{4,6})(?![\w:]|[.,]\d)(?! Uhr)"

TIMES = r"(?<![\w.,])(\d{1,2})( ?[x×])(?= (?!(?:und|oder|ist|mal|plus|minus) )[A-Za-zÄÖÜäöü]{2})"


def _any(words: str) -> str:
    return "|".join(words.split())


_LABELS = _any("""
    Kapitel Teil Tag Platz Nummer Version Stufe Gruppe Zimmer Schritt Band Seite Level Typ Klasse
    Phase Akt Szene Frage Aufgabe Linie Gleis Runde Artikel Absatz Paragraph Zeile Formel Woche Punkt
    Option Team Liga Bundesliga Tabelle Abbildung Modul Lektion Übung Beispiel Variante Heft Buch
    Staffel Folge Bahn Station Haus Raum Saal Halle Tor Block Bus Satz Strophe Vers Reihe Ebene Regel
    Fall Grund Antwort Anhang Anlage Kategorie Route Spieler Person Bild Kurs Spalte Ziel Etappe
    Abschnitt Position Posten Quartal Semester Jahrgang Mannschaft
""")
_LABEL = re.compile(  # "Kapitel 1 Einleitung", and any noun within a sentence
    rf"(?:[^\s.!?:] [A-ZÄÖÜ][a-zäöüß]+|\bNr\.|\b(?:{_LABELS})) $"
)
_DATIVE = re.compile(r"\b(?i:mit|nach|bei|von|zu|aus|seit|vor|in|ab|binnen) $")
_FEMININE_ENDS = _any(r"""
    frau stadt \bhand nacht mutter tochter schwester nummer person tür zahl ung heit keit schaft tät
    ion ik (?:er|ist|ent|ant|eund|ärzt|eg)in nachricht gabel zwiebel kartoffel nudel (?<!p)insel tafel
    schachtel wurzel nadel regel formel schüssel muschel kugel ampel bibel vokabel \buhr \bwand \bbank
    maus \bkuh \bgans wurst (?<!ge)nuss frucht antwort welt zeit arbeit mail \bapp \bbox pizza \boma
    kamera paprika butter mauer feder kammer klammer ziffer schulter faser schicht sicht pflicht
    schrift kraft fahrt \bart macht party sekunde urkunde
""")
_OTHER_ENDS = _any(r"""
    name junge kunde käse (?<!l)auge gebäude kollege experte gemüse interesse zeuge \baffe kaffee tee
    \bsee klee \bhase löwe bote hirte riese gedanke funke buchstabe glaube wille schwede franzose
    russe däne grieche türke brite chinese neffe \brabe ochse bube sklave gefährte genosse geselle
    laie pate loge pädagoge drache falke gebirge getreide gelände \berbe \bimage finale \bknie genie
    \b(?:wochen|jahres|monats|lebens|schul|kriegs)?ende
""")
_FEMININE = re.compile(rf"\w*(?:{_FEMININE_ENDS})|(?!\w*(?:{_OTHER_ENDS})$)\w*e")

_NEWS_OF_A_SCORE = _any(r"""
    ge(?:wann|winn|wonnen)\w* verl(?:or|ier)\w* sieg\w* \w+sieg \w*niederlage führ(?:t|ten?|en)
    schl(?:ug|ugen|ägt) \w*ergebnis remis unentschieden satz sätze \w*verhältnis maßstab quote
    mischung
""")
_GAMES = _any(r"spiel partie match begegnung duell \w*halbzeit \w*finale derby")
_SCORE = re.compile(
    rf"\b(?i:{_NEWS_OF_A_SCORE}|es (?:steht|stand)|(?:steht|stand) es"
    rf"|(?:{_GAMES})\b[^.!?]*?\b(?:endete?|ging|stand|steht))\b[^.!?]*$"
)
_TIME = re.compile(  # what stands directly before a time, whatever is spoken of
    r"\b(?i:um|ab|bis|seit|gegen|vor|nach|von|zwischen|kurz|heute|gestern|früh|nachts|uhr|beginnt"
    r"|startet|\w*(?:morgen|mittag|abend|nacht|tag)s?) $"
)


def one(found: re.Match[str]) -> Iterator[Edit]:
    """Read "1" before a noun as the article that the noun, or its adjective, asks for."""
    before = found.string[max(0, found.start() - 30) : found.start()]
    noun, adjective = found["noun"], found["adjective"] or ""
    if noun != "Uhr" and _LABEL.search(before):
        return
    dative = _DATIVE.search(before) is not None
    if noun == "Uhr":
        word = "ein"
    elif adjective and not (dative and adjective.endswith("n")):
        word = {"e": "eine", "n": "einen"}.get(adjective[-1], "ein")
    else:
        word = indefinite(before, feminine=_FEMININE.fullmatch(noun.lower()) is not None)
    yield Edit(*found.span("one"), word)


def indefinite(before: str, *, feminine: bool) -> str:
    """The indefinite article behind ``before``."""
    if _DATIVE.search(before):
        return "einer" if feminine else "einem"
    return "eine" if feminine else "ein"


def times(found: re.Match[str]) -> Iterator[Edit]:
    """Read "3x täglich" as "3 mal täglich"."""
    if found[1] == "1":
        yield Edit(*found.span(1), "ein")
    yield Edit(*found.span(2), " mal")


def ratio(found: re.Match[str]) -> Iterator[Edit]:
    """Read "3:2" as "3 zu 2" if it can't be a time, or a score is spoken of before it."""
    first, second = found[1], found[2]
    clock = len(second) == 2 and int(second) < 60 and int(first) <= 24
    if clock:
        before = found.string[max(0, found.start() - 60) : found.start()]
        if "0" in (first[0], second[0]) or _TIME.search(before) or not _SCORE.search(before):
            return
    yield Edit(found.end(1), found.start(2), " zu ")
