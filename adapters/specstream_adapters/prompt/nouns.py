"""Noun phrases: where one ends, and what it is the name or description of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from specstream_adapters.prompt.lexicon import (
    ADJECTIVES,
    ANIMATE,
    DETERMINERS,
    NOT_PLACES,
    NUMBERS,
    PLACE_PREPOSITIONS,
    PLACES,
    POSSESSIVES,
    PREPOSITIONS,
    PRONOUNS,
    QUANTIFIED,
    RELATIVES,
    TIMES,
)
from specstream_adapters.prompt.verbs import form_of
from specstream_adapters.prompt.words import Words, is_adverb, is_function, plural_form

__all__ = [
    "NounPhrase",
    "PlacePhrase",
    "noun_phrase",
    "noun_phrase_end",
    "prepositional_end",
    "read_place",
]

Kind = Literal["pronoun", "name", "definite", "indefinite", "possessive", "bare", "quantified"]
_NAMING = frozenset(("named", "called", "known"))
_COLLECTIVE = frozenset("herd flock pack crowd family crew team audience swarm pair".split())
_WEARING = frozenset(("with", "of", "without"))


@dataclass(frozen=True, slots=True)
class NounPhrase:
    """Who or what a sentence speaks of, as it is written.

    ``head`` is its noun in lower case; ``name`` a proper name in it, if any; ``described`` whether
    it says more than the name.
    """

    text: str
    head: str
    kind: Kind
    name: str = ""
    plural: bool = False
    described: bool = False

    @property
    def animate(self) -> bool:
        """Whether it is surely somebody rather than something."""
        singular = self.head.removesuffix("s")
        known = self.head in ANIMATE or (self.plural and singular in ANIMATE)
        return known or (bool(self.name) and self.described)


@dataclass(frozen=True, slots=True)
class PlacePhrase:
    """Where something is, as it is written; ``sure`` if its noun is the name of a kind of place."""

    text: str
    sure: bool


def noun_phrase_end(words: Words, i: int, end: int) -> int:
    """Where the noun phrase that starts at ``i`` ends, its apposition and "with ..." included."""
    j = i
    while j < end:
        low, word = words.low(j), words.at(j)
        if word.mark:
            if low == "," and _apposition_follows(words, j, end):
                close = words.find(",", j + 1, end)
                return noun_phrase_end(words, j + 1, end if close is None else close)
            return j
        if j > i and (low in RELATIVES or (low in PRONOUNS and low not in DETERMINERS)):
            return j
        if low in PREPOSITIONS and j > i:
            after = prepositional_end(words, j, end)
            place = read_place(words, j, after)
            if low not in _WEARING and (low != "in" or place is None or place.sure):
                return j
            j = after
            continue
        if low == "and":
            if not (words.low(j + 1) in DETERMINERS or words.is_name(j + 1)):
                return j
        elif j > i and low not in _NAMING and _ends_noun(words, j):
            return j
        j += 1
    return j


def _apposition_follows(words: Words, comma: int, end: int) -> bool:
    """Whether ", a lighthouse keeper" or ", Mara" (no verb in it) comes next."""
    first = words.low(comma + 1)
    if not (first in ("a", "an", "the") or words.is_name(comma + 1)):
        return False
    close = words.find(",", comma + 1, end)
    inside = range(comma + 2, end if close is None else close)
    return not any(_is_finite(words, j) for j in inside)


def _ends_noun(words: Words, j: int) -> bool:
    low, before = words.low(j), words.low(j - 1)
    if (low in DETERMINERS and before not in DETERMINERS and before != "and") or is_adverb(low):
        return True
    if words.low(j) in ("than", "to", "or", "but", "so"):
        return True
    return before not in DETERMINERS and (form_of(low) == "ing" or _is_finite(words, j))


def _is_finite(words: Words, j: int) -> bool:
    low, before = words.low(j), words.low(j - 1)
    if low in ("is", "are", "was", "were", "has", "had"):
        return True
    fits = not (before in DETERMINERS or before in PREPOSITIONS or before in ADJECTIVES)
    return (
        fits
        and before not in _NAMING
        and low not in _NAMING
        and form_of(low) == "past"
        and not words.at(j).capital
    )


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
        elif nouns and (_is_finite(words, j) or form_of(low) == "ing"):
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
    if inside[0] in ("out", "up", "down", "off", "back", "from") and inside[1:2] != ["of"]:
        inside, i = inside[1:], i + 1  # "out to sea"
    if not inside or inside[0] not in PLACE_PREPOSITIONS | {"to"} or not nouns:
        return None
    if any(low in ("every", "any", "no", "another", "some") for low in inside):
        return None
    if any(low in TIMES or low in PRONOUNS for low in nouns) or nouns[-1] in QUANTIFIED:
        return None
    head = _head(inside)
    sure = head in PLACES or any(low in PLACES for low in nouns)
    if not sure and (head in NOT_PLACES or any(low in NOT_PLACES for low in nouns)):
        return None
    if not sure and not any(low in DETERMINERS for low in inside) and not words.at(end - 1).capital:
        return None  # "in silence", "at work"
    return PlacePhrase(words.slice(i, end), sure)


def _head(lows: list[str]) -> str:
    """The last noun before "of" or whatever else follows the core."""
    core: list[str] = []
    for low in lows:
        if core and (low in PREPOSITIONS or low in RELATIVES or low in _NAMING or low == ","):
            break
        if low not in PREPOSITIONS and low not in DETERMINERS:
            core.append(low)
    return core[-1] if core else (lows[-1] if lows else "")


def noun_phrase(words: Words, i: int, end: int) -> NounPhrase | None:
    """Read words ``[i, end)`` as a noun phrase."""
    while end > i and (words.at(end - 1).mark or words.low(end - 1) in ("and", "or")):
        end -= 1
    if i >= end:
        return None
    text, first = words.slice(i, end), words.low(i)
    if end - i == 1 and first in PRONOUNS:
        return NounPhrase(first, first, "pronoun", plural=first in ("they", "we"))
    if lows_end(words, i, end) in (("of", "them"), ("of", "us")):  # "all three of them"
        return NounPhrase("they", "they", "pronoun", plural=True)
    names = [words.at(j).text for j in range(i, end) if words.is_name(j)]
    lows = [words.low(j) for j in range(i, end)]
    name = _name(words, i, end)
    core = [w for w in lows if w not in DETERMINERS and w != ","]
    described = len(core) > len(names)
    head = _description_head(words, i, end) if described else name.lower()
    if not (words.is_name(i) or first == "i"):
        text = text[0].lower() + text[1:]
    text = re.sub(r"\s*,$", "", text)
    if first in QUANTIFIED:
        kind: Kind = "quantified"
    elif words.is_name(i):
        kind = "name"
    elif first in POSSESSIVES:
        kind = "possessive"
    elif (
        first in ("a", "an", "another", "some") or first in NUMBERS or first in ("several", "many")
    ):
        kind = "indefinite"
    else:
        kind = "definite" if first in DETERMINERS else "bare"
    plural = "and" in lows or head in _COLLECTIVE or (plural_form(head) and not name)
    return NounPhrase(text, head or name.lower(), kind, name, plural, described)


def lows_end(words: Words, i: int, end: int) -> tuple[str, ...]:
    """The last two words of ``[i, end)``."""
    return tuple(words.low(j) for j in range(max(i, end - 2), end))


def _description_head(words: Words, i: int, end: int) -> str:
    """The noun of the describing part: "keeper" in "Mara, a lighthouse keeper"."""
    start = i
    if words.is_name(i):
        comma = words.find(",", i, end)
        start = i if comma is None else comma + 1
    return _head([words.low(j) for j in range(start, end) if not (words.is_name(j) and j > start)])


def _name(words: Words, i: int, end: int) -> str:
    """The first run of capitals that isn't part of a "with ..." or "of ..." phrase."""
    j = i
    while j < end:
        if words.low(j) in PREPOSITIONS and j > i:
            j = prepositional_end(words, j, end)
            continue
        if words.is_name(j):
            last = j
            while last + 1 < end and words.is_name(last + 1):
                last += 1
            return words.slice(j, last + 1)
        j += 1
    return ""
