"""The tables: every sound and every letter reaches a mouth shape."""

import random
import unicodedata

import pytest

from specstream.types import PAUSE
from specstream_adapters.avatar.directions import ARKIT_SHAPES, CLOSURES, SHAPES, VISEMES
from specstream_adapters.avatar.sounds import lone_stress, parse_ipa
from specstream_adapters.avatar.timeline import spell

# Symbols as espeak-ng writes them, by language (its own rendering of ordinary sentences).
INVENTORY = {
    "en": "ð k w ɪ b ɹ aʊ n f ɑː s dʒ ʌ m p oʊ v ɚ ɐ eɪ l z i d ɡ aɪ ɛ ʒ ŋ ɔɪ əl tʃ ɜː ɾ ʔ n̩ ᵻ θ ʃ",
    "de": "ʃ øː ə œ ç ts ʊ pf yː ʏ ɛː x ɔø iː ɜ aː oː uː eː ʁ",
    "fr": "ɑ̃ ɛ̃ ɔ̃ œ̃ ʁ ɥ ø œ y ɲ ɡ ʒ w",
    "es": "ɲ o r e ʎ x β ɣ ð ɾ ʝ tʃ θ",
    "it": "ʎ kː tsː dz dʒ ɔ ɛ ɲ ʊ",
    "pt": "ɐ̃ʊ̃ ɐ̃ ʎ ʊ ɨ ɲ õ ĩ ũ ʁ",
    "ja": "ä ɕ ɯᵝ e̞ ɴ ts ɽʲ ɡ ç ɸ",
    "ru": "ɵ tʲ mʲ kʲ ɭ ʌ ɕ ʑ y ʒ ts ɨ",
    "pl": "dʑ ɲ ɕ ʑ ɔ̃ dʒ tɕ ɲʲ tʂ ʐ w",
    "cs": "r̝̊ r̝ c ɟ ɦ",
    "other": "ʂ ʐ ɤ ɯ χ ħ ʕ q s. ts. i2 ˈɑu2 uoɜ sx ʉ ɟ ɡː j",
    "rare": "ɫ ɬ ɮ ʋ ɱ ɓ ɗ ɠ ǀ ǁ ǃ ʘ ɻ ɰ ɺ ʍ ɒ æ ɘ ɞ ɶ ʙ ʀ ʛ",
}
SHAPELESS = {"ʔ", "ħ", "ʕ", "ɦ"}


@pytest.mark.parametrize("language", INVENTORY)
def test_every_symbol_of_the_inventory_has_a_shape(language: str) -> None:
    for symbol in INVENTORY[language].split():
        phones = parse_ipa(symbol)
        assert phones, symbol
        assert sum(p.share for p in phones) == pytest.approx(1.0)
        if symbol in SHAPELESS:
            assert [p.viseme for p in phones] == [None]
        else:
            assert all(p.viseme in VISEMES and p.viseme != "sil" for p in phones), symbol


def test_the_inventory_reaches_every_viseme() -> None:
    reached = {p.viseme for row in INVENTORY.values() for s in row.split() for p in parse_ipa(s)}
    assert reached - {None} == set(VISEMES) - {"sil"}
    assert [p.viseme for p in parse_ipa(PAUSE)] == ["sil"]


@pytest.mark.parametrize(
    ("ipa", "visemes", "shares"),
    [
        ("tʃ", ["CH"], [1]),
        ("t͡ʃ", ["CH"], [1]),
        ("dʒ", ["CH"], [1]),
        ("aɪ", ["aa", "I"], [0.6, 0.4]),
        ("aʊ", ["aa", "U"], [0.6, 0.4]),
        ("ɔɪ", ["O", "I"], [0.6, 0.4]),
        ("eɪ", ["E", "I"], [0.6, 0.4]),
        ("ˈoʊ", ["O", "U"], [0.6, 0.4]),
        ("ən", ["E", "nn"], [0.4, 0.6]),
        ("n̩", ["nn"], [1]),
        ("ç", ["SS"], [1]),  # decomposes into c and a cedilla, but is no c
        ("iː", ["I"], [1]),
    ],
)
def test_the_longest_symbol_wins(ipa: str, visemes: list[str], shares: list[float]) -> None:
    phones = parse_ipa(ipa)
    assert [p.viseme for p in phones] == visemes
    assert [p.share for p in phones] == pytest.approx(shares)


def test_length_and_stress_weigh_on_their_vowel() -> None:
    short, long = parse_ipa("ta")[1], parse_ipa("taː")[1]
    assert long.share > short.share
    assert [p.stress for p in parse_ipa("ˈtaˌta")] == [1.0, 1.2, 1.0, 1.1]
    assert lone_stress("ˈ") == 1.2
    assert lone_stress("t") == 1.0


def test_bilabials_and_labiodentals_close_the_lips() -> None:
    assert {p.viseme for s in "pbm" for p in parse_ipa(s)} == {"PP"}
    assert {p.viseme for s in "fv" for p in parse_ipa(s)} == {"FF"}
    assert {"PP", "FF"} == CLOSURES


def test_no_text_whatever_breaks_the_parser() -> None:
    rng = random.Random(7)
    letters = [chr(c) for c in range(0x20, 0x3000) if chr(c).isprintable()]
    for symbol in letters:
        phones = parse_ipa(symbol)
        assert all(p.viseme is None or p.viseme in VISEMES for p in phones)
        if unicodedata.category(symbol) in ("Ll", "Lu", "Lo"):
            assert phones, f"{symbol} U+{ord(symbol):04X} fell through"
    for _ in range(200):
        phones = parse_ipa("".join(rng.choices(letters, k=rng.randint(0, 12))))
        assert not phones or sum(p.share for p in phones) == pytest.approx(1.0)


def test_variants_take_the_class_of_their_base_letter() -> None:
    for variant, base in [("ḇ", "b"), ("ɱ̊", "ɱ"), ("ő", "o"), ("Ŝ", "s"), ("ꞵ", "β"), ("ƭ", "t")]:
        if variant == "ꞵ":  # not decomposable, only its name tells
            assert parse_ipa(variant)[0].viseme in VISEMES
        else:
            assert parse_ipa(variant)[0].viseme == parse_ipa(base)[0].viseme, variant


@pytest.mark.parametrize(
    ("word", "visemes"),
    [
        ("mop", "PP O PP"),
        ("fish", "FF I CH"),
        ("lake", "nn aa kk"),
        ("café", "kk aa FF E"),
        ("happy", "aa PP I"),
        ("мама", "PP aa PP aa"),
        ("жук", "CH U kk"),
        ("さかな", "SS aa kk aa nn aa"),
        ("안녕", "aa nn I O nn"),
        ("12", "O nn E DD U O"),
        ("—", ""),
        ("", ""),
    ],
)
def test_words_are_spelled(word: str, visemes: str) -> None:
    phones = spell(word)
    assert [p.viseme for p in phones] == visemes.split()
    assert not phones or sum(p.share for p in phones) == pytest.approx(1.0)


def test_every_script_gives_some_movement() -> None:
    for word in ["你好", "नमस्ते", "שלום", "مرحبا", "Γειά", "สวัสดี", "Ծառ"]:
        assert {p.viseme for p in spell(word)} <= set(VISEMES), word
        assert spell(word), word


def test_shapes_are_arkit_s() -> None:
    assert len(set(ARKIT_SHAPES)) == 52
    assert set(SHAPES) == set(VISEMES)
    for viseme, weights in SHAPES.items():
        assert set(weights) <= set(ARKIT_SHAPES), viseme
        assert all(0.0 <= w <= 1.0 for w in weights.values())
        assert weights["mouthClose"] <= weights["jawOpen"] if "mouthClose" in weights else True
    assert max(SHAPES, key=lambda v: SHAPES[v]["jawOpen"]) == "aa"
    assert max(SHAPES, key=lambda v: SHAPES[v].get("mouthPucker", 0)) == "U"
