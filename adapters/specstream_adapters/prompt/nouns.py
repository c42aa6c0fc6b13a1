"""Noun phrases: where one ends, and what it is the name or description of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from specstream_adapters.prompt.lexicon import (
    ANIMATE,
    DETERMINERS,
    NAMING,
    NUMBERS,
    POSSESSIVES,
    PREPOSITIONS,
    PRONOUNS,
    QUANTIFIED,
    RELATIVES,
)
from specstream_adapters.prompt.phrases import head_of, is_finite, prepositional_end, read_place
from specstream_adapters.prompt.verbs import form_of
from specstream_adapters.prompt.words import Words, is_adverb, is_function, plural_form

__all__ = ["NounPhrase", "noun_phrase", "noun_phrase_end"]

Kind = Literal["pronoun", "name", "definite", "indefinite", "possessive", "bare", "quantified"]
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
        elif j > i and low not in NAMING and _ends_noun(words, j):
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
    return not any(is_finite(words, j) for j in inside)


def _ends_noun(words: Words, j: int) -> bool:
    low, before = words.low(j), words.low(j - 1)
    if (low in DETERMINERS and before not in DETERMINERS and before != "and") or is_adverb(low):
        return True
    if words.low(j) in ("than", "to", "or", "but", "so"):
        return True
    return before not in DETERMINERS and (form_of(low) == "ing" or is_finite(words, j))


def noun_phrase(words: Words, i: int, end: int) -> NounPhrase | None:
    """Read words ``[i, end)`` as a noun phrase."""
    while end > i and (words.at(end - 1).mark or words.low(end - 1) in ("and", "or")):
        end -= 1
    if i >= end:
        return None
    text, first = words.slice(i, end), words.low(i)
    if end - i == 1 and first in PRONOUNS:
        return NounPhrase(first, first, "pronoun", plural=first in ("they", "we"))
    if _last_two(words, i, end) in (("of", "them"), ("of", "us")):  # "all three of them"
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


def _last_two(words: Words, i: int, end: int) -> tuple[str, ...]:
    """The last two words of ``[i, end)``."""
    return tuple(words.low(j) for j in range(max(i, end - 2), end))


def _description_head(words: Words, i: int, end: int) -> str:
    """The noun of the describing part: "keeper" in "Mara, a lighthouse keeper"."""
    start = i
    if words.is_name(i):
        comma = words.find(",", i, end)
        start = i if comma is None else comma + 1
    return head_of(
        [words.low(j) for j in range(start, end) if not (words.is_name(j) and j > start)]
    )


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
            after = words.low(last + 1) if last + 1 < end else ""
            if j == i or is_function(after) or not after or words.at(last + 1).mark:
                return words.slice(j, last + 1)
            j = last  # "the new Corva jacket" is nobody's name
        j += 1
    return ""
