"""Guess mouth shapes from written words, for voices that time words but not sounds."""

from __future__ import annotations

import re
import unicodedata

from specstream_adapters.avatar.sounds import Phone

__all__ = ["spell"]

_GROUPS = {
    "PP": "pp bb mm p b m", "FF": "ff ph f v", "TH": "th", "DD": "tt dd t d",
    "kk": "ck kk cc gg kh k g q c x", "CH": "tch sch sh ch zh j", "SS": "ss zz s z",
    "nn": "nn ng ll n l", "RR": "rr r", "aa": "aa a", "E": "e", "I": "ee ea ie ei i",
    "O": "oa o", "U": "oo eu ue u w",
}  # fmt: skip
_LETTERS = {letters: viseme for viseme, row in _GROUPS.items() for letters in row.split()}
_LETTERS |= {"h": "", "gh": "", "wh": "U"}
_GROUP = re.compile("|".join(sorted(_LETTERS, key=len, reverse=True)))
_VOWELS = "aeiou"
_CONSONANT_TIME = 0.6  # relative to a vowel's time
_NAMED = re.compile(
    r"(CYRILLIC|GREEK|HEBREW|ARABIC|.*?) (?:SMALL |CAPITAL |FINAL )*(?:LETTER|SYLLABLE) (.+)"
)
_DIGITS = "zero one two three four five six seven eight nine".split()


def _latin(char: str) -> str:
    """Some Latin letters that sound a little like ``char``; empty if it is not spoken."""
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
    """Guess the phones of a written word.

    Good enough to move the lips at the right moments (closures above all), no more: it knows the
    commonest letter groups of European spellings, and takes other scripts by their Unicode names.
    The shares sum to 1, or the list is empty.
    """
    letters = "".join(_latin(c) for c in unicodedata.normalize("NFC", word))
    letters = re.sub(r"\by(?=[aeiou])", "i", letters).replace("y", "i")
    if len(letters) > 3 and word[-1] in "eE":
        letters = re.sub(r"(?<=[^aeiou])e$", "", letters)  # silent, as in "lake"
    groups = [g for g in _GROUP.findall(letters) if _LETTERS[g]]
    lengths = [1.0 if g[0] in _VOWELS else _CONSONANT_TIME for g in groups]
    return [
        Phone(_LETTERS[group], length / sum(lengths), group[0] in _VOWELS)
        for group, length in zip(groups, lengths, strict=True)
    ]
