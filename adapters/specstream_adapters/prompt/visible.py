"""Judge how much a sentence shows: English by a word list made from WordNet, other languages by form."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from importlib.resources import files

from specstream_adapters.words import stems

__all__ = ["gender", "is_someone", "is_something", "kind", "language_of", "sight", "stem"]

_FUNCTION_WORDS = {  # by language
    "en": "the and of to was were with he she his her is it at they had that as from into",
    "de": "der die das und ist nicht ein eine einen sich er sie den dem mit war zu auf im ich es wie",
    "es": "el la los las de que y en un una se no con por su al del lo es era",
}
_WORDS_OF = {language: frozenset(words.split()) for language, words in _FUNCTION_WORDS.items()}
_NOT = frozenset(  # words by which something is denied, wished or thought: it can't be seen
    "not never no nothing nobody none neither nor seldom scarcely won't don't didn't cannot "
    "wanted wants hoped hopes wished wishes knew knows thought thinks believed believes wondered "
    "wonders remembered remembers forgot seemed seems nicht kein keine keinen keiner nie niemand "
    "nichts niemals scheint schien weiß wusste nada nadie nunca ningún ninguna parece parecía sabe "
    "sabía".split()
)
_MODAL = frozenset("can could may might must would should shall will".split())
# A question, or words between speaker and listener.
_TALK = re.compile(r"\?\W*$|\b(?:you|your|let me|I can|I'll|I'm|I am|I've)\b", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_MARKS = re.compile(r"[=#_{}\\<>]|\w\(")  # sums and code
_WORDS_PER_WEIGHT = 13  # words per point of weight: a sentence with more begins no shot
_STATEMENT = 5  # least words of a statement to be shown (characters, in scripts without spaces)
_SPACELESS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f]")
_FEMALE = frozenset(
    "woman girl lady mother sister wife daughter queen princess aunt grandmother nun widow actress "
    "waitress hostess maid witch mare hen women she her hers".split()
)
_MALE = frozenset(
    "man boy gentleman father brother husband son king prince uncle grandfather monk nephew "
    "actor waiter fisherman policeman soldier sailor knight men he him his".split()
)


@cache
def _kinds() -> dict[str, str]:
    rows = (files(__package__) / "visible_en.txt").read_text("utf-8").splitlines()
    return {word: kind for kind, *words in map(str.split, rows) for word in words}


@lru_cache(maxsize=4096)
def stem(word: str) -> str:
    """The listed word of which an English word (lower case) is a form; without one, the word itself."""
    if word in _NOT:  # "hopes" is no form of "hop"
        return word
    # The longest root: a form of "star" is "starred", with a doubled letter; "stared" is one of "stare".
    return max((root for root in stems(word) if root in _kinds()), key=len, default=word)


def kind(word: str) -> str:
    """The kind of an English word, or of the word that it is a form of; "" if it names nothing to see.

    "someone" (a person), "animal", "something" (a thing, a place, a substance) or "doing".
    """
    word = word.lower()
    return "" if word in _NOT else _kinds().get(stem(word), "")


def is_something(word: str) -> bool:
    """Whether an English word names a thing, a place, a substance or an action."""
    return kind(word) in ("something", "doing")


def is_someone(word: str) -> bool:
    """Whether an English word names a person, an animal or a group of them."""
    return kind(word) in ("someone", "animal")


def gender(text: str) -> set[str]:
    """Which of "he" and "she" a text speaks of, by its nouns and pronouns."""
    words = {word.lower() for word in re.findall(r"[^\W\d_]+", text)}
    return {name for name, known in (("he", _MALE), ("she", _FEMALE)) if words & known}


def language_of(text: str) -> str:
    """Tell "en", "de" or "es" by a text's function words; "" where it has none of theirs."""
    words = re.findall(r"\w+", text.lower())
    counts = {name: sum(word in known for word in words) for name, known in _WORDS_OF.items()}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] else ""


def sight(
    text: str, language: str, names: frozenset[str] = frozenset(), *, known: bool = False
) -> int:
    """How much a sentence (without quoted speech) shows.

    0: nothing to see; 1: something that may be added to a shot; 2 or more: enough for a shot of its own.
    English words are looked up; in other languages any statement of at least five words is enough.
    ``names`` are words that name somebody; ``known``: a pronoun stands for somebody known.
    """
    words = _WORD.findall(text)
    if not words or _MARKS.search(text):
        return 0
    clauses = re.split(r"[,;:—–]", text)
    denied = _denies(_WORD.findall(clauses[0]))
    if language != "en":
        if denied or re.search(r"\?\W*$", text):
            return 0
        enough = len(words) >= _STATEMENT or len(_SPACELESS.findall(text)) >= _STATEMENT
        return 2 if enough else int(len(words) > 2)
    found = [_clause(clause, names) for clause in clauses]
    weight = sum(weight for weight, _ in found) - 2 * bool(
        _TALK.search(text) or len(re.findall(r"\d+", text)) > 1
    )
    if weight < max(len(words) / _WORDS_PER_WEIGHT, 4 * denied):
        weight = min(weight, 1)
    return max(0, weight) + (known and any(doing for _, doing in found))


def _clause(text: str, names: frozenset[str]) -> tuple[int, int]:
    """The weight of an English clause, and how many of its words name actions."""
    words = _WORD.findall(text)
    kinds = [
        "name" if word in names else kind(word) if word[0].islower() or at == 0 else ""
        for at, word in enumerate(words)
    ]
    somebody = sum(found in ("someone", "animal", "name") for found in kinds)
    things, doings = kinds.count("something"), kinds.count("doing")
    weight = min(things + somebody, 1 + things) + doings
    return max(0, weight - 2 * _denies(words)), doings


def _denies(words: list[str]) -> bool:
    """Whether a clause says that something isn't so, may be so or is thought.

    At its end, "can" is a noun ("a little can"), or only repeats a verb ("as fast as he can").
    """
    lower = [word.lower() for word in words]
    return not (_NOT.isdisjoint(lower) and _MODAL.isdisjoint(lower[:-1]))
