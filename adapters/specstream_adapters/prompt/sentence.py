"""Reads one sentence of plain narrative English, by rules.

Every word of the answer is from the sentence; where the rules find no subject or verb they say so
instead of guessing.
"""

from __future__ import annotations

import re

from specstream_adapters.prompt.clauses import read_main, read_order
from specstream_adapters.prompt.lexicon import DETERMINERS, PRONOUNS
from specstream_adapters.prompt.openers import read_openers, skip_connectives
from specstream_adapters.prompt.phrases import PlacePhrase
from specstream_adapters.prompt.predicates import find_verb
from specstream_adapters.prompt.scene import Place, Scene
from specstream_adapters.prompt.verbs import form_of
from specstream_adapters.prompt.words import Words, is_adverb

__all__ = ["read_scene"]

_HEADING = re.compile(
    r"\s*(?:INT|EXT)\b[./ ]+(?P<place>\w[^–—]*?)(?:\s+[-–—]\s+(?P<time>.+?))?[.\s]*"
)
_QUOTE = re.compile(r"[\"“]([^\"“”]*)(?:[\"”]|\Z)")
_TO_LISTENER = frozenset("you your please welcome thanks thank hello hi sorry".split())


def read_scene(text: str, names: frozenset[str] = frozenset()) -> Scene:
    """Read one sentence; ``names`` (lower case) are known to be proper names."""
    if heading := _HEADING.fullmatch(text):
        place = Place(PlacePhrase(heading["place"].lower(), True), "opening")
        return Scene("", "", places=[place], time=(heading["time"] or "").lower())
    quotes = [" ".join(found[1].split()) for found in _QUOTE.finditer(text)]
    told = _QUOTE.sub(lambda found: " " * len(found[0]), text)
    words = Words(told, names)
    end = len(words)
    while end and words.at(end - 1).mark:
        end -= 1
    start = skip_connectives(words, 0, end)
    scene = Scene(words.slice(0, end), words.slice(start, end))
    scene.quote = " ".join(quote for quote in quotes if quote)
    scene.question = told.rstrip().endswith("?")
    order = _is_order(words, start, end)
    scene.addressed = order or scene.question or _is_addressed(words, start, end)
    if order:
        read_order(words, start, end, scene)
    elif not scene.question:
        read_main(words, read_openers(words, start, end, scene), end, scene)
    return scene


def _is_addressed(words: Words, start: int, end: int) -> bool:
    if words.low(start) in ("let", "i", "we"):
        return True
    return any(words.low(j) in _TO_LISTENER for j in range(start, end))


def _is_order(words: Words, start: int, end: int) -> bool:
    """Whether the clause begins with its verb: "Slice the tomatoes"."""
    low, after = words.low(start), words.low(start + 1)
    if form_of(low) != "base" or low in ("meet", "welcome", "thank") or words.is_name(start):
        return False
    takes_object = after in DETERMINERS or after in PRONOUNS or is_adverb(after)
    return takes_object or find_verb(words, start, end) is None
