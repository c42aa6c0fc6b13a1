"""What stands before the main clause: connectives, when, where, and how it came about."""

from __future__ import annotations

import re

from specstream_adapters.prompt.clauses import read_places
from specstream_adapters.prompt.lexicon import (
    AUXILIARIES,
    BE,
    CONNECTIVES,
    DAYTIMES,
    DETERMINERS,
    PREPOSITIONS,
    SUBORDINATORS,
    TIMES,
)
from specstream_adapters.prompt.phrases import PlacePhrase, prepositional_end
from specstream_adapters.prompt.predicates import find_verb
from specstream_adapters.prompt.scene import Place, Scene
from specstream_adapters.prompt.verbs import form_of
from specstream_adapters.prompt.words import Words, is_adverb

__all__ = ["read_openers", "skip_connectives"]

_ALONE = frozenset("outside inside upstairs downstairs underwater backstage".split())
_ONLY_BEFORE_COMMA = frozenset(
    "no yes first second third next last well sure still once third okay ok oh ah however"
    " there here all so".split()
)
_HOW_FAR = frozenset("deep high far right halfway somewhere straight".split())
_HOW = frozenset(("how", "why", "when", "where"))
_YEAR = re.compile(r"[12]\d\d\d")
_MOST = 6  # openers of one sentence


def skip_connectives(words: Words, i: int, end: int) -> int:
    """The first word that is no "and then", "suddenly", "that is how" or the like."""
    while i < end:
        low = words.low(i)
        comma = words.low(i + 1) == ","
        if words.at(i).mark or (low == "just" and words.low(i + 1) in ("then", "as")):
            i += 1
        elif low in _HOW_FAR and words.low(i + 1) in PREPOSITIONS:
            i += 1
        elif low in ("step", "tip", "note") and ":" in (words.low(i + 1), words.low(i + 2)):
            i += 2
        elif low in ("that", "this") and words.low(i + 1) in BE and words.low(i + 2) in _HOW:
            i += 3
        elif low in _ONLY_BEFORE_COMMA and not comma:
            return i
        elif low in CONNECTIVES or low in _ONLY_BEFORE_COMMA:
            i += 1
        else:
            return i
    return i


def read_openers(words: Words, i: int, end: int, scene: Scene) -> int:
    """Read what stands before the main clause (when, where, how); return where that begins."""
    for _ in range(_MOST):
        i = skip_connectives(words, i, end)
        after = (
            _read_time(words, i, end, scene)
            or _read_subordinate(words, i, end, scene)
            or _read_fronted(words, i, end, scene)
            or _skip_adverb(words, i, end, scene)
        )
        if not after or after >= end:
            return i
        i = after
    return i


def _read_time(words: Words, i: int, end: int, scene: Scene) -> int | None:
    """As in: "Late one evening", "at midnight", "all her life", "two days later"."""
    unknown, noun = 0, None
    for j in range(i, min(i + 8, end)):
        low = words.low(j)
        if low in TIMES and not (j == i and words.low(j + 1) in PREPOSITIONS):
            noun = j
        elif noun is not None:
            break
        elif (
            low in PREPOSITIONS or low in DETERMINERS or is_adverb(low) or low in ("late", "early")
        ):
            continue
        else:
            unknown += 1
            if unknown > 2 or words.at(j).mark or low in AUXILIARIES or form_of(low) == "past":
                return None
    if noun is None:
        return None
    after = noun + 1
    if words.low(after) in ("later", "ago", "before", "after", "earlier", "long"):
        after += 1
    if words.low(after) == "of":
        after = prepositional_end(words, after, end)
    if words.low(after) != "," and find_verb(words, after, end) is None:
        return None  # it is the subject: "Night fell", "The day was cold"
    phrase = words.slice(i, after)
    if any(words.low(j) in DAYTIMES for j in range(i, after)):
        scene.time = phrase[0].lower() + phrase[1:]
    else:
        scene.later = words.low(i) not in ("for", "all")
    return after + (words.low(after) == ",")


def _read_subordinate(words: Words, i: int, end: int, scene: Scene) -> int | None:
    """As in: "When the storm came, ...", "Holding her breath, ..."."""
    low = words.low(i)
    if low not in SUBORDINATORS and form_of(low) != "ing":
        return None
    comma = words.find(",", i, end)
    if comma is None or comma + 1 >= end:
        return None
    phrase = words.slice(i, comma)
    phrase = phrase[0].lower() + phrase[1:]
    if any(words.low(j) in DAYTIMES or words.low(j) == "sun" for j in range(i, comma)):
        scene.time = phrase
    else:
        scene.opening = phrase
    return comma + 1


def _read_fronted(words: Words, i: int, end: int, scene: Scene) -> int | None:
    """As in: "In a dusty workshop, ...", "Out of the dark came ..."."""
    low = words.low(i)
    if low in _ALONE and words.low(i + 1) == ",":
        scene.places.append(Place(PlacePhrase(low, True), "opening"))
        return i + 2
    if low not in PREPOSITIONS:
        return None
    after = prepositional_end(words, i, end)
    while words.low(after) in PREPOSITIONS and after < end:
        after = prepositional_end(words, after, end)
    comma = words.low(after) == ","
    inverted = form_of(words.low(after)) or words.low(after) in BE
    if not comma and not inverted and find_verb(words, after, end) is None:
        return None
    if _YEAR.fullmatch(words.low(after - 1)):
        scene.era = f"{low} {words.low(after - 1)}"
    read_places(words, i, after, "", scene, "opening")
    scene.fronted = words.slice(i, after)
    scene.fronted = scene.fronted[0].lower() + scene.fronted[1:]
    return after + comma


def _skip_adverb(words: Words, i: int, end: int, scene: Scene) -> int | None:
    adverb = is_adverb(words.low(i)) and words.low(i) != "there" and not words.is_name(i)
    return i + 1 + (words.low(i + 1) == ",") if adverb else None
