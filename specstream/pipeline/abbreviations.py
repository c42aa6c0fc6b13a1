"""Tells what a full stop after a word means, by tables for a dozen languages that are used all at once.

A reply may change its language from one sentence to the next, so there is no language option; words
that mean different things in two languages are distinguished by their case or left out.
"""

from __future__ import annotations

from enum import Enum

__all__ = [
    "GERMAN_OPENERS",
    "LETTERED_NOUNS",
    "ORDINAL_LEADS",
    "ORDINAL_NOUNS",
    "ORDINAL_OPENERS",
    "REPORTING_VERBS",
    "SENTENCE_OPENERS",
    "SHORT_WORDS",
    "TIME_WORDS",
    "Stop",
    "stop_after",
]


class Stop(Enum):
    """How a full stop after an abbreviation reads when a capital letter follows."""

    PLAIN = "no abbreviation: the sentence ends"
    BINDS = "the sentence goes on, whatever follows"
    NUMBERS = "goes on before a number, else the sentence ends"
    GOES_ON = "goes on, unless the next word opens sentences"
    MAY_END = "the sentence ends, unless the next word belongs to it"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Read as titles only with a capital: "Gen. Grant", but "one more rep. Then".
_TITLES = _words("""
    mx drs dra rev fr hon gen col lt sgt cpl pvt capt cmdr cdr adm maj gov sen rep pres supt messrs
    mme mmes mlle mgr hr frl dipl ing srs sres ud uds exmo mw ee doç av lic fa
""")
_BINDS = _words("""
    mr mrs ms dr prof sig dott avv sra srta dhr mevr p.s vs v cf cfr viz ca approx incl excl esp eg
    ie bzw vgl ggf evtl sog inkl exkl bspw kath tzw tzn tj np zob bijv bv bkz örn ej admón
    напр см ср ул просп проф акад им тов пгт डॉ श्री
""")
_NUMBERS = _words("""
    no nos nr num núm fig figs pp pg pgs vol vols ch chap eq eqs art arts ext tel fax para abs abb
    bd kap gest ver op apt rm ste bldg pág págs cap tab anm n° n.º párr párrf
    гл стр рис табл
""")
_GOES_ON = _words("""
    st mt ft pt mio mrd ph.d m.sc b.sc bros univ inst intl natl mfg cie geb chr med rer phil jur ex
    гг обл
""")
_NAMES = _words("""
    jr sr esq uu calif mass ill tenn ariz fla ala conn minn wash okla mich wis tex va ga colo ont
""")
_MAY_END = _words("""
    etc inc ltd corp co ave blvd rd ln hwy dept assn est min mins hr hrs sec secs yr yrs wk wks mos
    lb lbs oz qt gal tsp tbsp mph sq cu max avg temp al a.m p.m d.c n.y l.a b.c a.d b.c.e c.e usw usf
    u.s.w ecc itd itp enz vb std jh godz т.д т.п др руб коп тыс млн млрд мин сек
""")
_DATES = _words("""
    mon tue tues wed thu thur thurs fri sat sun jan feb mar apr jun jul aug sep sept oct nov dec
    ene abr ago dic märz mai okt dez juin juil août déc
""")
_UNITS = _words("in ft cm mm km kg")
_SOUNDS = _words("hm hmm mm mmm sh shh psst pfft tsk brr grr")
_VOWELS = frozenset("aeiouy")

SHORT_WORDS = _words("""
    it me you him her us too yes ok now day way one two out up on off bad big fun hi hey bye how why
    who all any not so do go idk lol new old
""")
"""Words under four letters whose full stop ends a sentence even before a small letter."""

TIME_WORDS = _DATES | _words("""
    monday tuesday wednesday thursday friday saturday sunday january february march april may june
    july august september october november december eastern pacific central et est edt pt pst pdt ct
    cst cdt mst mdt gmt utc cet cest bst ist jst
""")
"""What may follow the stop of "p.m.", "Inc." and the like without opening a sentence."""

ORDINAL_NOUNS = _words("""
    januar jänner februar märz april mai juni juli august september oktober november dezember
    mär mrz feb sept okt nov dez tag jahrestag geburtstag spieltag advent
    jahrhundert jahrhunderts jahrtausend jh jhd weltkrieg weltkriegs mal klasse stock etage platz rang
    preis liga bundesliga halbzeit runde etappe quartal halbjahr semester lebensjahr auflage
    generation instanz stelle reihe ordnung grades staffel sinfonie symphonie og ug fc
""")
"""German nouns before which "3." is an ordinal number, whatever stands before it."""

ORDINAL_LEADS = _words("im am zum zur vom beim ins ans der die das dem den des") | frozenset(
    stem + ending
    for stem in "ein kein mein dein sein ihr unser unsr euer eur jed dies jen".split()
    for ending in ("", "e", "em", "en", "er", "es")
)
"""German words after which "3." is an ordinal number, unless the next word opens a sentence."""

GERMAN_OPENERS = _words("""
    der die das dem den des ein eine einer einen einem kein keine mein meine dein deine sein seine ihr
    ihre unser unsere euer eure dies diese dieser dieses jeder jede jedes alle alles viele manche einige
    beide niemand jemand keiner ich du er sie es wir man mir dir ihm ihn uns ihnen und oder aber denn
    doch weil wenn ob obwohl während sobald solange falls bevor nachdem als da dass wie wo wer wen wem
    was wann warum wieso weshalb wohin woher dann danach darauf darum deshalb deswegen daher dabei damit
    dafür dadurch davor davon dazu nun jetzt heute morgen übermorgen gestern später vorher
    nachher zuerst zuletzt
    schließlich endlich außerdem trotzdem dennoch allerdings jedoch vielleicht natürlich leider bitte
    also auch nur noch schon so sonst somit hier dort diesmal insgesamt ja nein nicht in im an am auf
    aus bei beim bis durch für gegen mit nach ohne seit über um unter von vom vor zu zum zur zwischen
    ist sind war waren hat haben hatte hatten wird werden wurde wurden kann können soll sollen will
    wollen muss müssen darf dürfen gibt gab kommt kommst geht passt stimmt findet klappt reicht
    wäre wären würde würden könnte könnten könntest sollte sollten solltest möchte möchten möchtest
    hätte hätten welche welcher welches welchen etwas mehr meins deins seins ebenso anschließend
    morgens mittags abends nachts gut okay genau danke prima super wirklich lass lasst
""")
"""What opens a German sentence after "am 3." and the like; any other word is what is counted."""

LETTERED_NOUNS = _words("""
    plan option answer vitamin grade type part group team class letter point level figure exhibit
    appendix hepatitis or a an
""")
"""After these words a single capital letter is a label ("plan B."), not an initial."""

REPORTING_VERBS = _words("""
    said says asked asks replied replies answered cried shouted whispered added thought wondered
    exclaimed yelled murmured muttered told explained insisted sagte fragte rief
""")
"""After a closing quote and one word, these verbs go on with the sentence (``"Why?" Tom asked.``)."""

SENTENCE_OPENERS = _words("""
    the a an it he she we you they i this that these those there here his her my our your their its
    in on at by for from with if when while where what who why how which as after before since
    because but and so or yet then now also however although though please let yes not nobody some
    many most all every each both another such even only just once still maybe perhaps do does did
    can could would should is are was were have has had see visit check call click try take use go
    come make get look read ask tell turn start stop find keep add put bring remember thanks
    der die das ein eine er sie es wir ihr ich und aber dann auch im als wenn was wie wo dies diese
    dieser man nach seit heute danach darauf darum deshalb daher dabei damit damals dafür dort jetzt nun
    später leider bitte mein meine sein seine unser unsere kein keine viele jeder jede
    les un une il elle ils elles nous vous je tu on ce cette ces et mais
    puis dans en au pour el los las él ella ellos yo nosotros este esta y pero se lo gli lui lei noi
    io ma questo è o os um uma ele ela eles eu nós mas em na het een hij zij ik maar dit dat ona oni
    to w ale jak bu ve ama det han hon vi jag och men на он она оно они мы вы я это эта этот в но и
    а с по как когда что затем потом также
""")

ORDINAL_OPENERS = GERMAN_OPENERS | SENTENCE_OPENERS - _words("""
    all ale as ask call check click come get go lo look los men on os put read see start stop try turn
    use visit
""")
"""What opens a sentence in any language after "den 3." and the like; German nouns are left out."""


def stop_after(word: str, *, after_number: bool = False) -> Stop:
    """How to read a full stop after ``word`` (given without that stop, inner stops included).

    ``after_number``: "3 in." is a length, "come in." is not.
    """
    low = word.lower()
    capital = word[:1].isupper()
    if low in _BINDS or (capital and low in _TITLES):
        return Stop.BINDS
    if low in _NUMBERS or low.endswith("str"):  # "Hauptstr. 5"
        return Stop.NUMBERS
    if low in _MAY_END or (capital and low in _DATES) or (after_number and low in _UNITS):
        return Stop.MAY_END
    if low in _GOES_ON or (capital and low in _NAMES):
        return Stop.GOES_ON
    return _by_shape(word)


def _by_shape(word: str) -> Stop:
    """Judge a word that is in no table: initials, letters with stops, words without vowels."""
    letters = word.split(".")
    if len(word) == 1 and word.isalpha():
        return Stop.GOES_ON  # an initial
    if len(letters) > 1 and all(len(part) == 1 and part.isalpha() for part in letters):
        return Stop.BINDS if word.islower() else Stop.GOES_ON  # "e.g", "U.S"
    consonants = word.isascii() and word.isalpha() and not _VOWELS & set(word.lower())
    if consonants and word.istitle() and 1 < len(word) <= 4 and word.lower() not in _SOUNDS:
        return Stop.GOES_ON  # "Sgt", "Bldg": too many for a table
    return Stop.PLAIN
