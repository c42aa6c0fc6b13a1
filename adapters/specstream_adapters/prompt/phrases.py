"""Prepositional phrases: where one ends, and whether it names a place."""

from __future__ import annotations

from dataclasses import dataclass

from specstream_adapters.prompt.lexicon import (
    ADJECTIVES,
    DETERMINERS,
    NAMING,
    NOT_PLACES,
    PLACE_PREPOSITIONS,
    PLACES,
    PREPOSITIONS,
    PRONOUNS,
    QUANTIFIED,
    RELATIVES,
    TIMES,
)
from specstream_adapters.prompt.verbs import base_of, form_of
from specstream_adapters.prompt.words import Words, is_adverb, is_function

__all__ = ["STANDING", "PlacePhrase", "head_of", "is_finite", "prepositional_end", "read_place"]

STANDING = frozenset(
    "come go be stand sit lie live hang rise appear wait run stretch walk fly step emerge grow burn"
    " sleep lead float shine swim dwell".split()
)
"""Verbs that may come before their subject: "Out of the dark came a white owl"."""
_FARTHER = frozenset("out up down off back from".split())  # "out to sea"
_NOWHERE = frozenset("every any no another some".split())


@dataclass(frozen=True, slots=True)
class PlacePhrase:
    """Where something is, as it is written; ``sure`` if its noun is the name of a kind of place."""

    text: str
    sure: bool


def is_finite(words: Words, j: int) -> bool:
    """Whether the word at ``j`` can only be the verb of a clause, not part of a noun phrase."""
    low, before = words.low(j), words.low(j - 1)
    if low in ("is", "are", "was", "were", "has", "had"):
        return True
    if form_of(low) != "past" or words.at(j).capital or low in NAMING:
        return False
    if before in DETERMINERS or before in PREPOSITIONS or before in NAMING:
        return False
    return before not in ADJECTIVES or base_of(low) in STANDING


def prepositional_end(words: Words, i: int, end: int) -> int:
    """Where the prepositional phrase that starts at ``i`` ends."""
    j, nouns = i + 1, 0
    while j < end:
        low, word = words.low(j), words.at(j)
        if word.mark:
            return j
        if low in PREPOSITIONS and nouns == 0 or low == "of":
            nouns = 0
        elif nouns and (low in PREPOSITIONS or is_function(low) or low == "and"):
            return j
        elif nouns and words.is_name(j) and not words.is_name(j - 1):
            return j
        elif nouns and (is_finite(words, j) or form_of(low) == "ing"):
            return j
        elif nouns and form_of(low) == "s" and words.low(j + 1) in DETERMINERS:
            return j
        elif low in PRONOUNS and low not in DETERMINERS:
            return j + 1
        elif low not in DETERMINERS and not is_adverb(low):
            nouns += 1
        j += 1
    return j


def read_place(words: Words, i: int, end: int) -> PlacePhrase | None:
    """The place that the prepositional phrase ``[i, end)`` names, or None if it names none."""
    inside = [words.low(j) for j in range(i, end)]
    nouns = [low for low in inside if low not in PREPOSITIONS and low not in DETERMINERS]
    if inside[0] in _FARTHER and inside[1:2] != ["of"]:
        inside, i = inside[1:], i + 1  # "out to sea"
    if not inside or inside[0] not in PLACE_PREPOSITIONS | {"to"} or not nouns:
        return None
    if any(low in _NOWHERE for low in inside):
        return None
    if any(low in TIMES or low in PRONOUNS for low in nouns) or nouns[-1] in QUANTIFIED:
        return None
    head = head_of(inside)
    sure = head in PLACES or any(low in PLACES for low in nouns)
    if not sure and (head in NOT_PLACES or any(low in NOT_PLACES for low in nouns)):
        return None
    if not sure and not any(low in DETERMINERS for low in inside) and not words.at(end - 1).capital:
        return None  # "in silence", "at work"
    return PlacePhrase(words.slice(i, end), sure)


def head_of(lows: list[str]) -> str:
    """The last noun before "of" or whatever else follows the core."""
    core: list[str] = []
    for low in lows:
        if core and (low in PREPOSITIONS or low in RELATIVES or low in NAMING or low == ","):
            break
        if low not in PREPOSITIONS and low not in DETERMINERS:
            core.append(low)
    return core[-1] if core else (lows[-1] if lows else "")
