"""English words to sounds: exceptions first, then spelling rules, then stress and weak vowels.

The method is that of Elovitz et al. (1976), "Automatic translation of English text to phonetics by
means of letter-to-sound rules", with a smaller set of rules (see `g2p_rules`).
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

from specstream_adapters.voice.g2p_rules import RULES
from specstream_adapters.voice.g2p_words import EXCEPTIONS, FUNCTION_WORDS, LETTERS

__all__ = ["Word", "is_vowel", "pronounce", "spell"]

_VOWELS = frozenset("iː ɪ i ɛ æ ɑː ɔː ʊ uː ʌ ɜː ə ɚ eɪ aɪ ɔɪ aʊ oʊ".split())
_WEAK = {"æ": "ə", "ʌ": "ə", "ɑː": "ə", "ɛ": "ɪ"}
_STRESS = "ˈ"
_UNKNOWN = ("n", "ə")
_HISSING = frozenset("s z ʃ ʒ tʃ dʒ".split())
_VOICELESS = frozenset("p t k f θ".split())
_SHORT_FORMS = {
    "'ll": ("ə", "l"), "'re": ("ɚ",), "'ve": ("ə", "v"), "'d": ("d",), "'m": ("m",),
    "n't": ("ə", "n", "t"),
}  # fmt: skip
_MACROS = {
    "E": "[bcdfghjklmnpqrstvz](?:e|es|ed|er|ers|est|ing|ings)$",
    "C": "[bcdfghjklmnpqrstvwxz]",
    "P": "[aeiouy].*",
    "V": "[aeiouy]",
}
_PREFIX = re.compile(
    "ex[aeiou]|(?:a|be|con|com|de|dis|en|em|ex|for|im|in|pre|pro|re|sub|sur|un|up)(?=[b-z]{3})"
)
# The stress is on the vowel before these endings, which hold one vowel, or two.
_ENDING = re.compile("(?:ion|[ct]i(?:an|al|ous|ent)|ics?|i?ous|ian|ual)s?$")
_LONG_ENDING = re.compile("(?:ity|ities|ical|ically|ular)s?$")


@dataclass(frozen=True, slots=True)
class Word:
    """The sounds of one spoken word; ``stress`` is the index of its strongest vowel, or -1."""

    phones: tuple[str, ...]
    stress: int


def is_vowel(phone: str) -> bool:
    """Whether ``phone`` can carry a syllable."""
    return phone in _VOWELS


@dataclass(frozen=True, slots=True)
class _Rule:
    graph: str
    left: re.Pattern[str] | None
    right: re.Pattern[str] | None
    phones: tuple[str, ...]


def _context(pattern: str, *, before: bool) -> re.Pattern[str] | None:
    if pattern == "-":
        return None
    expanded = re.sub("[ECPV]", lambda macro: _MACROS[macro[0]], pattern)
    return re.compile(f"(?:{expanded})\\Z" if before else expanded)


def _rules() -> dict[str, list[_Rule]]:
    rules: dict[str, list[_Rule]] = {}
    for line in RULES.split("\n"):
        if line:
            graph, left, right, *phones = line.split()
            said = () if phones == ["0"] else tuple(phones)
            contexts = _context(left, before=True), _context(right, before=False)
            rules.setdefault(graph[0], []).append(_Rule(graph, *contexts, said))
    return rules


def _dictionary(entries: str) -> dict[str, Word]:
    words = {}
    for entry in entries.split(","):
        word, *marked = entry.split()
        phones = tuple(phone.removeprefix(_STRESS) for phone in marked)
        stressed = [i for i, phone in enumerate(marked) if phone.startswith(_STRESS)]
        vowels = [i for i, phone in enumerate(phones) if is_vowel(phone)]
        words[word] = Word(phones, (stressed or vowels)[0])
    return words


_BY_LETTER = _rules()
_KNOWN = _dictionary(EXCEPTIONS)
_NAMES = _dictionary(LETTERS)


@lru_cache(maxsize=4096)
def pronounce(word: str) -> Word:
    """The sounds of ``word``: lower-case letters of any script, apostrophes allowed.

    Letters outside the Latin script are read by the last word of their Unicode name where that is
    short ("ka"), else as a neutral syllable; nothing is silent.
    """
    stem, ending = _split_ending(word)
    letters = "".join(map(_latin, stem.replace("'", "")))
    found = _KNOWN.get(word) or _KNOWN.get(letters if not ending else word)
    if found is None:
        if ending:
            base = pronounce(stem)
            found = Word(base.phones + ending, base.stress)
        elif any(map(is_vowel, phones := _apply_rules(letters))):
            found = _stressed(letters, phones)
        else:
            found = spell(letters)
    return Word(found.phones, -1) if word in FUNCTION_WORDS else found


def spell(letters: str) -> Word:
    """The names of the letters, one after another, the last one stressed."""
    names = [_NAMES.get(_latin(letter), Word(_UNKNOWN, 1)) for letter in letters]
    phones = tuple(phone for name in names for phone in name.phones)
    stress = max((i for i, phone in enumerate(phones) if is_vowel(phone)), default=-1)
    return Word(phones, stress)


def _split_ending(word: str) -> tuple[str, tuple[str, ...]]:
    """Cut off a short form ("you'll", "isn't") or the "s" of a known word, with its sounds."""
    for ending, phones in _SHORT_FORMS.items():
        if word.endswith(ending) and len(word) > len(ending):
            return word[: -len(ending)], phones
    stem = word.removesuffix("s").removesuffix("'")
    if stem and (word.endswith("'s") or (stem in _KNOWN and word.endswith("s"))):
        last = pronounce(stem).phones[-1]
        hissing, voiceless = last in _HISSING, last in _VOICELESS
        return stem, ("ɪ", "z") if hissing else ("s",) if voiceless else ("z",)
    return word, ()


@lru_cache(maxsize=4096)
def _latin(char: str) -> str:
    """Latin letters for one letter of any script."""
    if unicodedata.combining(char):
        return ""
    base = unicodedata.normalize("NFKD", char)[:1].lower()
    if "a" <= base <= "z":
        return base
    name = unicodedata.name(char, "").split()
    short = name[-1].lower() if name else ""
    known = "LETTER" in name or "SYLLABLE" in name
    return short if known and len(short) <= 6 and short.isalpha() and short.isascii() else "na"


def _apply_rules(letters: str) -> tuple[str, ...]:
    phones: list[str] = []
    at = 0
    while at < len(letters):
        for rule in _BY_LETTER[letters[at]]:
            after = at + len(rule.graph)
            if (
                letters.startswith(rule.graph, at)
                and (rule.left is None or rule.left.search(letters[:at]))
                and (rule.right is None or rule.right.match(letters, after))
            ):
                phones.extend(rule.phones)
                at = after
                break
    return tuple(phones)


def _stressed(letters: str, phones: tuple[str, ...]) -> Word:
    """Choose the stressed vowel, then weaken the others."""
    vowels = [i for i, phone in enumerate(phones) if is_vowel(phone)]
    chosen = 0
    if len(vowels) > 1:
        if _LONG_ENDING.search(letters):
            chosen = max(0, len(vowels) - 3)
        elif _ENDING.search(letters):
            hiatus = vowels[-1] == vowels[-2] + 1  # "curious": the ending has two vowels after all
            chosen = max(0, len(vowels) - 2 - hiatus)
        elif _PREFIX.match(letters) and phones[vowels[0]] in ("ə", "ɪ", "ɑː", "ɛ", "ʌ"):
            chosen = 1
        while phones[vowels[chosen]] == "ə" and chosen + 1 < len(vowels):
            chosen += 1
    stress = vowels[chosen]
    weak = [
        _WEAK.get(phone, phone) if i in vowels[1:] and i != stress else phone
        for i, phone in enumerate(phones)
    ]
    if chosen and phones[vowels[0]] in ("ɑː", "æ") and letters.startswith(("con", "com", "a")):
        weak[vowels[0]] = "ə"
    weak[stress] = {"ə": "ʌ", "ɚ": "ɜː"}.get(weak[stress], weak[stress])
    return Word(tuple(weak), stress)
