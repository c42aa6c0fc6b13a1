"""Map sounds to mouth shapes: one table from IPA to the visemes of Oculus, Microsoft and Rhubarb.

Oculus: as in its lip-sync reference; where its table leaves a choice (front rounded vowels, velar
fricatives), the look of the lips decides. Microsoft: SPVISEMES, as Azure's table for US English assigns
them to IPA. Rhubarb: the shapes that its own rules prefer.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

from specstream.types import PAUSE
from specstream_adapters.avatar.directions import SILENCE

__all__ = ["Names", "Phone", "lone_stress", "names_of", "parse_ipa"]


class Names(NamedTuple):
    """The viseme of a sound in each set of visemes."""

    oculus: str
    microsoft: int
    rhubarb: str


_VOWELS = {
    Names("aa", 2, "D"): "a ɑ",
    Names("aa", 1, "C"): "æ ʌ ɐ",
    Names("E", 4, "C"): "e ɛ",
    Names("E", 1, "C"): "ə ɘ ɤ ǝ",
    Names("E", 5, "E"): "ɜ",
    Names("I", 6, "B"): "i ɪ ɨ ᵻ ɩ",
    Names("O", 3, "E"): "ɔ ɒ ø œ ɞ ɶ",
    Names("O", 8, "E"): "o ɵ",
    Names("U", 7, "F"): "u ɯ y ʏ ʉ ᵿ ɷ",
    Names("U", 4, "F"): "ʊ",
    Names("RR", 5, "E"): "ɚ ɝ",
}
_CONSONANTS = {
    Names("PP", 21, "A"): "p b m ɓ ʙ ʘ",
    Names("FF", 18, "G"): "f v ʋ ɸ β ɱ ⱱ",
    Names("TH", 17, "B"): "θ ð",
    Names("DD", 19, "B"): "t d ʈ ɖ ɗ ᶑ ɾ ǀ ǃ",
    Names("kk", 20, "B"): "k g ɡ c ɟ q ɢ x ɣ χ ɠ ʄ ʛ ʞ ʟ ɰ",
    Names("CH", 16, "B"): "ʃ ʒ ɕ ʑ ʂ ʐ ɧ ʆ ʓ ʧ ʤ ʨ ʥ ǂ tʃ dʒ tɕ dʑ tʂ dʐ s. ts. z. sx",
    Names("SS", 15, "B"): "s z ç",
    Names("nn", 19, "B"): "n ɲ ɳ",
    Names("nn", 20, "B"): "ŋ ɴ",
    Names("nn", 14, "H"): "l ɫ ɭ ɬ ɮ ʎ ǁ",
    Names("RR", 13, "E"): "r ɹ ɻ ɽ ɺ ʀ ʁ ɼ r̝",
    Names("I", 6, "B"): "j ʝ",
    Names("U", 7, "F"): "w ʍ ɥ",
}
# Made below the mouth, which already has the next sound's shape.
_SHAPELESS = "h ɦ ħ ʕ ʔ ʡ ʢ ʜ".split()
_SHAPELESS_MICROSOFT = 12
_DIPHTHONGS = {"eɪ": 4, "oʊ": 8, "əʊ": 8, "aʊ": 9, "ɔɪ": 10, "ɔø": 10, "aɪ": 11}  # Microsoft's
_VOWEL, _CONSONANT = 1.0, 0.7  # relative lengths
_LONG, _OFFGLIDE = 1.5, 2 / 3  # factors: a length mark; the second part of a diphthong


class Phone(NamedTuple):
    """One mouth shape, for ``share`` of a sound's time.

    ``viseme`` is None for a sound without a shape of its own. ``sound`` is its IPA, for a diphthong both
    vowels; empty where it is guessed from the spelling.
    """

    viseme: str | None
    share: float
    vowel: bool = False
    stress: float = 1.0
    sound: str = ""


def _nfd(text: str) -> str:
    return unicodedata.normalize("NFD", text)


_NAMES: dict[str, Names] = {
    _nfd(symbol): names
    for names, symbols in (_VOWELS | _CONSONANTS).items()
    for symbol in symbols.split()
}
_OF_VISEME: dict[str, Names] = {SILENCE: Names(SILENCE, 0, "X")}
for _names in (*_VOWELS, *_CONSONANTS):
    _OF_VISEME.setdefault(_names.oculus, _names)
_OF_VISEME["RR"] = Names("RR", 13, "E")


def names_of(viseme: str, sound: str = "") -> Names:
    """The visemes of a sound in each set; ``viseme`` (Oculus) decides where the sound isn't known.

    >>> names_of("nn", "l")
    Names(oculus='nn', microsoft=14, rhubarb='H')
    """
    names = _OF_VISEME[viseme]
    if sound in _SHAPELESS:
        return names._replace(microsoft=_SHAPELESS_MICROSOFT)
    if sound in _DIPHTHONGS:
        return names._replace(microsoft=_DIPHTHONGS[sound])
    known = _NAMES.get(sound, names)
    return known if known.oculus == viseme else names


def _table() -> dict[str, tuple[Phone, ...]]:
    table: dict[str, tuple[Phone, ...]] = {PAUSE: (Phone(SILENCE, 1.0),)}
    for vowel, length, rows in ((True, _VOWEL, _VOWELS), (False, _CONSONANT, _CONSONANTS)):
        for names, symbols in rows.items():
            for symbol in symbols.split():
                table[symbol] = (Phone(names.oculus, length, vowel, sound=_nfd(symbol)),)
    for symbol in _SHAPELESS:
        table[symbol] = (Phone(None, _CONSONANT, sound=symbol),)
    for symbol, hiss in (("ts", "s"), ("ʦ", "s"), ("dz", "z"), ("ʣ", "z")):
        table[symbol] = (Phone("DD", 0.3, sound="t"), Phone("SS", 0.5, sound=hiss))
    table["pf"] = (Phone("PP", 0.4, sound="p"), Phone("FF", 0.4, sound="f"))
    for viseme, sound in (("nn", "n"), ("nn", "l"), ("PP", "m")):  # syllabic consonants
        table[f"ə{sound}"] = (Phone("E", 0.4, True, sound="ə"), Phone(viseme, 0.6, sound=sound))
    return {_nfd(symbol): parts for symbol, parts in table.items()}


_PHONES = _table()
_TOKEN = re.compile("|".join(re.escape(s) for s in sorted(_PHONES, key=len, reverse=True)) + "|.", re.S)
_TIES = re.compile("[\u035c\u0361\u200d\u2060]")
_STRESS = {"ˈ": 1.2, "ˌ": 1.1, "'": 1.2}
_LONGER = "ːˑ:"
_FALLBACK = (Phone("E", _VOWEL, True, sound="ə"),)


def _unknown(symbol: str) -> tuple[Phone, ...]:
    """The mouth shapes of a symbol outside the tables: those of the letter it is a variant of."""
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
    part of a diphthong and lasts two thirds of the first (60/40). Never fails: a symbol outside the
    tables has the shapes of its base letter. Text without a sound (a lone stress or length mark) gives
    an empty list.
    """
    found: list[Phone] = []
    stress = 1.0
    for token in _TOKEN.findall(_TIES.sub("", _nfd(text))):
        if token in _STRESS:
            stress = _STRESS[token]
        elif token in _LONGER and found:
            found[-1] = found[-1]._replace(share=found[-1].share * _LONG)
        for phone in _PHONES.get(token) or _unknown(token):
            if phone.vowel:
                phone, stress = phone._replace(stress=stress), 1.0
                if found and found[-1].vowel:
                    phone = phone._replace(share=phone.share * _OFFGLIDE)
                    if (both := found[-1].sound + phone.sound) in _DIPHTHONGS:
                        found[-1] = found[-1]._replace(sound=both)
                        phone = phone._replace(sound=both)
            found.append(phone)
    total = sum(phone.share for phone in found)
    return [phone._replace(share=phone.share / total) for phone in found]


def lone_stress(text: str) -> float:
    """The stress that a mark without a sound of its own (``ˈ``) lends to the vowel after it."""
    return _STRESS.get(text.strip(), 1.0)
