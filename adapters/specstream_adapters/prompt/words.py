"""Words with their places, and what can be said of one without its sentence."""

from __future__ import annotations

import re
from dataclasses import dataclass

from specstream_adapters.prompt.lexicon import (
    ADJECTIVES,
    ADVERBS,
    AUXILIARIES,
    CONNECTIVES,
    DETERMINERS,
    MASS,
    PREPOSITIONS,
    PRONOUNS,
    QUANTIFIED,
    RELATIVES,
    SUBORDINATORS,
)
from specstream_adapters.prompt.verbs import form_of

__all__ = ["Word", "Words", "is_adverb", "is_function", "plural_form", "split"]

_WORD = re.compile(
    r"(?:Mrs?|Ms|Dr|St|Prof|Capt|Sgt|Lt)\.(?= )"  # a title
    r"|[^\W_]+(?:[.,:/'’&-](?=[^\W_])[^\W_]+)*"  # "5.30", "half-open", "Mara's"
    r"|[,;:.!?…()—–]|--"
)
_CONTRACTED = re.compile(
    r"\b(i|you|he|she|it|we|they|there|here|that|who|what|let)(['’](?:m|re|ve|ll|s|d))$",
    re.IGNORECASE,
)
_MARKUP = re.compile(r"(?:(?<!\w)[*_`#]+|[*_`#]+(?!\w)|\s+)+")
_FUNCTION = (
    DETERMINERS | PRONOUNS | PREPOSITIONS | AUXILIARIES | ADVERBS | CONNECTIVES | SUBORDINATORS
    | RELATIVES | QUANTIFIED | {"to", "not", "what", "how", "why", "where"}
)  # fmt: skip
_LY_WORDS = frozenset("family fly reply ally belly jelly bully lily rally italy july".split())
_LY_ADJECTIVES = frozenset(
    "friendly lonely lovely ugly silly curly early elderly woolly holy".split()
)
_ODD_PLURALS = frozenset("people children men women mice geese sheep feet police cattle".split())


@dataclass(frozen=True, slots=True)
class Word:
    """A word or mark of punctuation at ``[start, end)`` of its sentence; ``low`` is lower case."""

    text: str
    start: int
    end: int

    @property
    def low(self) -> str:
        """Lower case, with straight apostrophes."""
        return self.text.lower().replace("’", "'")

    @property
    def capital(self) -> bool:
        """Whether it is written like a name."""
        return self.text[0].isupper()

    @property
    def mark(self) -> bool:
        """Whether it is punctuation."""
        return not self.text[0].isalnum() and self.text[0] not in "'’"


def split(text: str) -> list[Word]:
    """The words and marks of a sentence; "she's" is two words, "Mara's" is one."""
    words: list[Word] = []
    for found in _WORD.finditer(text):
        short = _CONTRACTED.match(found[0])
        cut = found.start() + len(short[1]) if short else found.end()
        words.append(Word(text[found.start() : cut], found.start(), cut))
        if short:
            words.append(Word(text[cut : found.end()], cut, found.end()))
    return words


def is_adverb(low: str) -> bool:
    """Whether the word says how, when or how much."""
    ends = low.endswith("ly") and len(low) > 4
    return low in ADVERBS or (ends and low not in _LY_WORDS and low not in _LY_ADJECTIVES)


def is_function(low: str) -> bool:
    """Whether the word belongs to a closed class: no noun, adjective or full verb."""
    return low in _FUNCTION or is_adverb(low)


def plural_form(low: str) -> bool:
    """Whether a noun looks like more than one."""
    return low in _ODD_PLURALS or (low.endswith("s") and not low.endswith(("ss", "us", "is")))


class Words:
    """The words of one sentence, asked by index; out of range there is only an empty word."""

    _NONE = Word(" ", 0, 0)

    def __init__(self, text: str, names: frozenset[str] = frozenset()) -> None:
        self.text = text
        self.all = split(text)
        self._names = names

    def __len__(self) -> int:
        return len(self.all)

    def at(self, i: int) -> Word:
        """The word at ``i``."""
        return self.all[i] if 0 <= i < len(self.all) else self._NONE

    def low(self, i: int) -> str:
        """The word at ``i`` in lower case, "" outside."""
        return self.at(i).low.strip()

    def slice(self, i: int, end: int) -> str:
        """The text from word ``i`` up to word ``end``, white space collapsed."""
        if i >= min(end, len(self.all)):
            return ""
        text = self.text[self.all[i].start : self.all[min(end, len(self.all)) - 1].end]
        return re.sub(r"\s+(?=[,.!?;:])", "", _MARKUP.sub(" ", text)).strip()

    def find(self, what: str, i: int, end: int | None = None) -> int | None:
        """The first index from ``i`` on of the word ``what``."""
        stop = len(self.all) if end is None else end
        return next((j for j in range(i, stop) if self.low(j) == what), None)

    def is_name(self, i: int) -> bool:
        """Whether the word at ``i`` is (part of) a proper name.

        At the start of a sentence a capital says little: there, what isn't known as a name must at
        least not be a common word.
        """
        word, low = self.at(i), self.low(i)
        if not word.capital or word.low in PRONOUNS:
            return False
        if low in self._names:
            return True
        starts = self.low(i - 1) == ":" or not any(not self.at(j).mark for j in range(i))
        if not starts:
            return low not in DETERMINERS
        if self.low(i + 1) == ",":  # "Suddenly, ..." but "Mara, a lighthouse keeper, ..."
            return self.low(i + 2) in ("a", "an", "the") and not is_function(low)
        next_verb = form_of(self.low(i + 1)) == "past" or self.low(i + 1) in AUXILIARIES
        adjective = low in ADJECTIVES and not next_verb  # "Rusty woke up" is about a name
        common = adjective or is_function(low) or low in MASS or plural_form(low)
        return not common and form_of(low) in (None, "past") and not self.at(i + 1).mark
