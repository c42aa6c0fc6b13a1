"""Sounds to mouth shapes: IPA and letters to the 15 Oculus visemes, and those to ARKit blend shapes.

The viseme set is that of the Oculus lip-sync reference; where its table and the look of the lips
leave a choice (front rounded vowels, velar fricatives) the look decides.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

from specstream.types import PAUSE

__all__ = [
    "ARKIT_SHAPES",
    "CLOSURES",
    "SHAPES",
    "SILENCE",
    "VISEMES",
    "Phone",
    "both_sides",
    "lone_stress",
    "parse_ipa",
    "spell",
]

SILENCE = "sil"
VISEMES = (
    "sil", "PP", "FF", "TH", "DD", "kk", "CH", "SS", "nn", "RR", "aa", "E", "I", "O", "U",
)  # fmt: skip
CLOSURES = frozenset({"PP", "FF"})
"""Visemes in which the lips touch something: an eye sees at once when they don't."""

_SIDED = (
    "browDown", "browOuterUp", "cheekSquint", "eyeBlink", "eyeLookDown", "eyeLookIn", "eyeLookOut",
    "eyeLookUp", "eyeSquint", "eyeWide", "mouthDimple", "mouthFrown", "mouthLowerDown",
    "mouthPress", "mouthSmile", "mouthStretch", "mouthUpperUp", "noseSneer",
)  # fmt: skip
_SINGLE = (
    "browInnerUp", "cheekPuff", "jawForward", "jawLeft", "jawOpen", "jawRight", "mouthClose",
    "mouthFunnel", "mouthLeft", "mouthPucker", "mouthRight", "mouthRollLower", "mouthRollUpper",
    "mouthShrugLower", "mouthShrugUpper", "tongueOut",
)  # fmt: skip
ARKIT_SHAPES = tuple(
    sorted([*_SINGLE, *(f"{s}{side}" for s in _SIDED for side in ("Left", "Right"))])
)
"""The 52 blend shapes of ARKit's face anchor."""


def both_sides(**weights: float) -> dict[str, float]:
    """Blend shapes by name; one that has a left and a right half is set on both.

    >>> both_sides(jawOpen=0.2, mouthSmile=0.5)
    {'jawOpen': 0.2, 'mouthSmileLeft': 0.5, 'mouthSmileRight': 0.5}
    """
    out: dict[str, float] = {}
    for name, value in weights.items():
        names = (f"{name}Left", f"{name}Right") if name in _SIDED else (name,)
        out.update(dict.fromkeys(names, value))
    return out


# ARKit's mouthClose shuts the lips by as much as the jaw has opened, so the two go together in PP.
SHAPES: dict[str, dict[str, float]] = {
    "sil": both_sides(jawOpen=0.0, mouthClose=0.0),
    "PP": both_sides(
        jawOpen=0.08, mouthClose=0.08, mouthPress=0.45, mouthRollLower=0.3, mouthRollUpper=0.25
    ),
    "FF": both_sides(jawOpen=0.1, mouthRollLower=0.5, mouthUpperUp=0.25, mouthShrugUpper=0.1),
    "TH": both_sides(jawOpen=0.18, tongueOut=0.35, mouthLowerDown=0.2, mouthUpperUp=0.1),
    "DD": both_sides(jawOpen=0.16, mouthLowerDown=0.25, mouthUpperUp=0.15, mouthStretch=0.1),
    "kk": both_sides(jawOpen=0.24, mouthLowerDown=0.2, mouthUpperUp=0.1, mouthStretch=0.12),
    "CH": both_sides(jawOpen=0.12, mouthFunnel=0.5, mouthPucker=0.25, mouthUpperUp=0.15),
    "SS": both_sides(
        jawOpen=0.06, mouthStretch=0.3, mouthSmile=0.15, mouthLowerDown=0.25, mouthUpperUp=0.2
    ),
    "nn": both_sides(jawOpen=0.15, mouthLowerDown=0.2, mouthUpperUp=0.1),
    "RR": both_sides(jawOpen=0.17, mouthFunnel=0.3, mouthPucker=0.2),
    "aa": both_sides(jawOpen=0.7, mouthLowerDown=0.35, mouthUpperUp=0.2, mouthStretch=0.1),
    "E": both_sides(
        jawOpen=0.4, mouthStretch=0.25, mouthSmile=0.15, mouthLowerDown=0.3, mouthUpperUp=0.2
    ),
    "I": both_sides(
        jawOpen=0.2, mouthSmile=0.3, mouthStretch=0.3, mouthLowerDown=0.2, mouthUpperUp=0.15
    ),
    "O": both_sides(jawOpen=0.5, mouthFunnel=0.55, mouthPucker=0.2),
    "U": both_sides(jawOpen=0.22, mouthPucker=0.7, mouthFunnel=0.35),
}

_VOWELS = {
    "aa": "a ɑ æ ʌ ɐ",
    "E": "e ɛ ə ɜ ɘ ɤ ǝ",
    "I": "i ɪ ɨ ᵻ ɩ",
    "O": "o ɔ ɒ ø œ ɵ ɞ ɶ",
    "U": "u ʊ ɯ y ʏ ʉ ᵿ ɷ",
    "RR": "ɚ ɝ",
}
_CONSONANTS = {
    "PP": "p b m ɓ ʙ ʘ",
    "FF": "f v ʋ ɸ β ɱ ⱱ",
    "TH": "θ ð",
    "DD": "t d ʈ ɖ ɗ ᶑ ɾ ǀ ǃ",
    "kk": "k g ɡ c ɟ q ɢ x ɣ χ ɠ ʄ ʛ ʞ ʟ ɰ",
    "CH": "ʃ ʒ ɕ ʑ ʂ ʐ ɧ ʆ ʓ ʧ ʤ ʨ ʥ ǂ tʃ dʒ tɕ dʑ tʂ dʐ s. ts. z. sx",
    "SS": "s z ç",
    "nn": "n l ɫ ɭ ɬ ɮ ʎ ŋ ɴ ɲ ɳ ǁ",
    "RR": "r ɹ ɻ ɽ ɺ ʀ ʁ ɼ r̝",
    "I": "j ʝ",
    "U": "w ʍ ɥ",
}
_SHAPELESS = "h ɦ ħ ʕ ʔ ʡ ʢ ʜ"  # made below the mouth, which already takes the next sound's shape
_VOWEL, _CONSONANT = 1.0, 0.7  # relative lengths
_LONG, _OFFGLIDE = 1.5, 2 / 3  # factors: a length mark; the second part of a diphthong


class Phone(NamedTuple):
    """A piece of a sound: ``share`` of its time; ``viseme=None`` has no shape of its own."""

    viseme: str | None
    share: float
    vowel: bool = False
    stress: float = 1.0


_Parts = tuple[tuple[str | None, float, bool], ...]  # (viseme, relative length, is a vowel)


def _table() -> dict[str, _Parts]:
    table: dict[str, _Parts] = {PAUSE: ((SILENCE, 1.0, False),)}
    for viseme, symbols in _VOWELS.items():
        table |= dict.fromkeys(symbols.split(), ((viseme, _VOWEL, True),))
    for viseme, symbols in _CONSONANTS.items():
        table |= dict.fromkeys(symbols.split(), ((viseme, _CONSONANT, False),))
    table |= dict.fromkeys(_SHAPELESS.split(), ((None, _CONSONANT, False),))
    for symbol in ("ts", "ʦ", "dz", "ʣ"):
        table[symbol] = (("DD", 0.3, False), ("SS", 0.5, False))
    table["pf"] = (("PP", 0.4, False), ("FF", 0.4, False))
    for symbol, viseme in (("ən", "nn"), ("əl", "nn"), ("əm", "PP")):  # syllabic consonants
        table[symbol] = (("E", 0.4, True), (viseme, 0.6, False))
    return {unicodedata.normalize("NFD", symbol): parts for symbol, parts in table.items()}


_PHONES = _table()
_TOKEN = re.compile(
    "|".join(re.escape(s) for s in sorted(_PHONES, key=len, reverse=True)) + "|.", re.S
)
_TIES = re.compile("[\u035c\u0361\u200d\u2060]")
_STRESS = {"ˈ": 1.2, "ˌ": 1.1, "'": 1.2}
_LONGER = "ːˑ:"
_FALLBACK: _Parts = (("E", _VOWEL, True),)


def _unknown(symbol: str) -> _Parts:
    """The class of a symbol outside the tables: that of the letter it is a variant of."""
    if not symbol.isalpha() or unicodedata.category(symbol) == "Lm":
        return ()
    plain = unicodedata.normalize("NFKD", symbol).casefold()[:1]
    if plain in _PHONES:
        return _PHONES[plain]
    # "LATIN SMALL LETTER TURNED H WITH FISHHOOK" is, to the eye, some kind of h.
    letter = re.search(r"LETTER (?:[A-Z]{2,} )*([A-Z])\b", unicodedata.name(symbol, ""))
    return _PHONES.get(letter[1].lower(), _FALLBACK) if letter else _FALLBACK


def parse_ipa(text: str) -> list[Phone]:
    """Cut IPA into phones, longest symbol first; the shares sum to 1, or the list is empty.

    Diacritics, tones, ties and punctuation are skipped. A vowel right after a vowel is the second
    part of a diphthong and lasts two thirds of the first (60/40). Never fails: a symbol that no
    table knows takes the class of its base letter. Text that holds no sound at all (a lone stress
    or length mark) gives an empty list.
    """
    found: list[tuple[str | None, float, bool, float]] = []
    stress = 1.0
    for token in _TOKEN.findall(_TIES.sub("", unicodedata.normalize("NFD", text))):
        if token in _STRESS:
            stress = _STRESS[token]
        elif token in _LONGER and found:
            viseme, length, vowel, loud = found[-1]
            found[-1] = (viseme, length * _LONG, vowel, loud)
        for viseme, length, vowel in _PHONES.get(token) or _unknown(token):
            if vowel and found and found[-1][2]:
                length *= _OFFGLIDE
            found.append((viseme, length, vowel, stress if vowel else 1.0))
            stress = 1.0 if vowel else stress
    total = sum(length for _, length, _, _ in found)
    return [Phone(viseme, length / total, vowel, loud) for viseme, length, vowel, loud in found]


def lone_stress(text: str) -> float:
    """The stress that a mark without a sound of its own (``ˈ``) lends to the vowel after it."""
    return _STRESS.get(text.strip(), 1.0)


_GROUPS = {
    "PP": "pp bb mm p b m", "FF": "ff ph f v", "TH": "th", "DD": "tt dd t d",
    "kk": "ck kk cc gg kh k g q c x", "CH": "tch sch sh ch zh j", "SS": "ss zz s z",
    "nn": "nn ng ll n l", "RR": "rr r", "aa": "aa a", "E": "e", "I": "ee ea ie ei i",
    "O": "oa o", "U": "oo eu ue u w",
}  # fmt: skip
_LETTERS = {letters: viseme for viseme, row in _GROUPS.items() for letters in row.split()}
_LETTERS |= {"h": "", "gh": "", "wh": "U"}
_GROUP = re.compile("|".join(sorted(_LETTERS, key=len, reverse=True)))
_A_TO_U = "aeiou"
_CONSONANT_TIME = 0.6  # of a vowel's
_NAMED = re.compile(
    r"(CYRILLIC|GREEK|HEBREW|ARABIC|.*?) (?:SMALL |CAPITAL |FINAL )*(?:LETTER|SYLLABLE) (.+)"
)
_DIGITS = "zero one two three four five six seven eight nine".split()


def _latin(char: str) -> str:
    """Some Latin letters that sound a little like ``char``; empty for what is not spoken."""
    if char.isdecimal():
        return _DIGITS[unicodedata.decimal(char)]
    plain = unicodedata.normalize("NFKD", char).casefold()
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    if not plain or plain.isascii() or not plain[0].isalpha():
        return plain if plain.isalpha() else ""
    named = _NAMED.match(unicodedata.name(char, ""))
    if named is None:
        return "ha"  # a sign without a reading in its name (Han, say): one open syllable
    script, name = named[1], named[2].split(" WITH ")[0].split()[-1].lower()
    if script == "CYRILLIC":  # consonants are called EL, EM, EN or BE, ZHE, SHA
        if name in ("sign", "yeru"):
            return "" if name == "sign" else "i"
        if len(name) == 2 and name[0] == "e":
            return name[1]
        return re.sub(r"(?<=[^aeiouy])[aeiou]$", "", name)
    return name[:1] if script in ("GREEK", "HEBREW", "ARABIC") else name


def spell(word: str) -> list[Phone]:
    """Guess the phones of a written word, for voices that time words but not sounds.

    Good enough to move the lips at the right moments (closures above all), no more: it knows the
    commonest letter groups of European spellings, and takes other scripts by their Unicode names.
    The shares sum to 1, or the list is empty.
    """
    letters = "".join(_latin(c) for c in unicodedata.normalize("NFC", word))
    letters = re.sub(r"\by(?=[aeiou])", "i", letters).replace("y", "i")
    if len(letters) > 3 and word[-1] in "eE":
        letters = re.sub(r"(?<=[^aeiou])e$", "", letters)  # silent, as in "lake"
    groups = [g for g in _GROUP.findall(letters) if _LETTERS[g]]
    lengths = [1.0 if g[0] in _A_TO_U else _CONSONANT_TIME for g in groups]
    return [
        Phone(_LETTERS[group], length / sum(lengths), group[0] in _A_TO_U)
        for group, length in zip(groups, lengths, strict=True)
    ]
