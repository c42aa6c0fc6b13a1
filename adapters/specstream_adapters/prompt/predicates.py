"""Where a clause's verb is."""

from __future__ import annotations

from specstream_adapters.prompt.lexicon import (
    ADJECTIVES,
    AUXILIARIES,
    DETERMINERS,
    MASS,
    NAMING,
    NUMBERS,
    PREPOSITIONS,
    PRONOUNS,
    QUANTIFIED,
    RELATIVES,
)
from specstream_adapters.prompt.verbs import form_of
from specstream_adapters.prompt.words import Words, is_adverb, is_function, plural_form

__all__ = ["find_verb", "starts_clause"]

_JOINTS = frozenset(("and", "but", "so", "or", "yet", "while", "as", "when", ";", "—", "--"))
_SUBJECTS = frozenset("i you he she it we they this that these those".split())


def find_verb(words: Words, i: int, end: int) -> int | None:
    """The index at which the verb group (its adverbs included) of the clause at ``i`` begins.

    The clause must begin with its subject. None if no word after that can be its verb.
    """
    if words.low(i) in _SUBJECTS and words.low(i) not in DETERMINERS:
        return _after_pronoun(words, i, end)
    if words.low(i) in ("this", "that", "these", "those") and words.low(i + 1) in AUXILIARIES:
        return i + 1
    weak: int | None = None
    relative = False
    j = i + 1
    while j < end:
        low, word = words.low(j), words.at(j)
        if low == ",":
            close = _apposition_end(words, j, end)
            if close is None:
                break
            j = close
        elif word.mark:
            break
        elif low in RELATIVES:
            after = _over_adverbs(words, j + 1)
            if words.low(after) in AUXILIARIES or form_of(words.low(after)):
                j = _over_adverbs(words, after)
            else:
                relative = True
        elif low in NAMING:
            while words.at(j + 1).capital:
                j += 1
        elif (low in AUXILIARIES and not word.capital) or (
            not word.capital and _strength(words, i, j) == 2
        ):
            if not relative:
                return _back_over_adverbs(words, i, j)
            relative = False
            j = _over_adverbs(words, j + 1) - 1
        elif weak is None and not word.capital and _strength(words, i, j) == 1 and not relative:
            weak = _back_over_adverbs(words, i, j)
        j += 1
    return weak


def _after_pronoun(words: Words, i: int, end: int) -> int | None:
    j = i + 1
    while j < end and (is_adverb(words.low(j)) or words.low(j) in ("all", "both", "each")):
        j += 1
    low = words.low(j)
    verb = low in AUXILIARIES or form_of(low) or not (is_function(low) or words.at(j).mark)
    return i + 1 if j < end and verb else None


def _apposition_end(words: Words, comma: int, end: int) -> int | None:
    """The closing comma of ", a lighthouse keeper," or None if this comma ends the clause."""
    close = words.find(",", comma + 1, end)
    first = words.low(comma + 1)
    if close is None or not (
        first in DETERMINERS or words.is_name(comma + 1) or first in RELATIVES
    ):
        return None
    return close


def _strength(words: Words, start: int, j: int) -> int:
    """How surely the word at ``j`` is the finite verb: 2 is sure, 1 may be, 0 is not."""
    low, before, after = words.low(j), words.low(j - 1), words.low(j + 1)
    form = form_of(low)
    if before in DETERMINERS | PREPOSITIONS or before == "to":
        return 0
    # Some adjectives are nouns as well: "golden light filled ...", "a gate of iron stood ...".
    noun = before in MASS or words.low(j - 2) in PREPOSITIONS or words.is_name(j - 1)
    if (before in ADJECTIVES and not noun) or (after == "of" and form != "past"):
        return 0
    if form == "ing":
        return 1
    ends = not after or words.at(j + 1).mark or is_function(after)
    if form is None:  # "a voice crackles through ...": not in the lexicon, but where a verb stands
        one = not plural_form(before) or words.find("of", start, j) is not None
        stands = ends and j - 1 > start and one and not is_function(before)
        return 1 if stands and plural_form(low) and words.low(start) in DETERMINERS else 0
    if form == "past":
        adjectival = not ends and _finite_soon(words, j + 1)
        return 0 if adjectival else 2
    if form == "s":
        return (2 if ends else 1) if not plural_form(before) else 0
    many = plural_form(before) or before in NUMBERS or words.find("and", start, j) is not None
    return (2 if ends else 1) if many or before in QUANTIFIED else 0


def _finite_soon(words: Words, j: int) -> bool:
    """Whether, with only bare words between, a verb follows: "an abandoned | house stood"."""
    while words.low(j) and not words.at(j).mark and not is_function(words.low(j)):
        j += 1
        if words.low(j) in AUXILIARIES or form_of(words.low(j)) == "past":
            return True
    return False


def _over_adverbs(words: Words, j: int) -> int:
    """The next index that is neither an adverb nor an auxiliary before a verb."""
    while is_adverb(words.low(j)) or (words.low(j) in AUXILIARIES and form_of(words.low(j + 1))):
        j += 1
    return j


def _back_over_adverbs(words: Words, start: int, j: int) -> int:
    while j - 1 > start and is_adverb(words.low(j - 1)):
        j -= 1
    return j


def starts_clause(words: Words, j: int, end: int) -> bool:
    """Whether the word at ``j`` joins on a clause with a subject of its own."""
    if words.low(j) not in _JOINTS:
        return False
    if words.low(j) == "as" and words.low(j + 1) in ("many", "much", "few", "if", "soon"):
        return False
    while words.low(j + 1) == "then" or (
        is_adverb(words.low(j + 1)) and words.low(j + 1) != "there"
    ):
        j += 1
    first = words.low(j + 1)
    subject = first in DETERMINERS or first in _SUBJECTS or words.is_name(j + 1)
    subject = subject or first in QUANTIFIED or first in ADJECTIVES | MASS or first == "there"
    if plural_form(first) and not is_function(first):  # "and musicians played"
        subject = subject or form_of(words.low(j + 2)) == "past"
    if not subject or first in PRONOUNS - _SUBJECTS - DETERMINERS:
        return False
    stop = next((k for k in range(j + 2, end) if words.at(k).mark or words.low(k) == "and"), end)
    verb = find_verb(words, j + 1, stop)
    return verb is not None and form_of(words.low(verb)) != "ing"
