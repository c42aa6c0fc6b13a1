"""Written words and the phonemes that the package makes of them."""

import pytest

from specstream.types import Span
from specstream_adapters.voice.hibari import shared_model
from specstream_adapters.voice.phonemes import NO_WORD, Reader, Script

pytest.importorskip("hibari")


@pytest.fixture(scope="module")
def reader() -> Reader:
    return shared_model("heart").reader


def said(script: Script, text: str) -> list[tuple[str, str]]:
    """Each word with its sounds."""
    pairs = list(zip(script.symbols, script.owners, strict=True))
    return [
        (text[slice(*word)], "".join(symbol for symbol, owner in pairs if owner == number))
        for number, word in enumerate(script.words)
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It costs $3.50 at noon.", "It|costs|$3.50|at|noon"),
        ("On Jan. 5th, 2019 we ran 5 km", "On|Jan|5th|2019|we|ran|5|km"),
        ("Chapter IV of Henry VIII", "Chapter|IV|of|Henry|VIII"),
        ("at 5:30 pm today", "at|5:30 pm|today"),
        ("he paid $3.2 billion for it", "he|paid|$3.2|billion|for|it"),
        ("10\u00b0C outside", "10\u00b0C|outside"),
        ("my mother-in-law's don't \u2014 and/or 50%", "my|mother-in-law's|don't|and/or|50%"),
        ("rock 'n' roll (yes) \"no\" [maybe]", "rock|n|roll|yes|no|maybe"),
        ("  spaced \n out  ", "spaced|out"),
        ("see [hello](/b\u02c8I/) now", "see|hello](/b\u02c8I/|now"),
    ],
)
def test_words_are_what_was_written(reader: Reader, text: str, words: str) -> None:
    assert [word for word, _ in said(reader.read(text), text)] == words.split("|")


def test_a_word_has_its_own_sounds(reader: Reader) -> None:
    text = "Dr. Lee read 2 books on 10/12/2019, ok?"
    sounds = dict(said(reader.read(text), text))
    assert sounds["Dr"].startswith("d\u02c8\u0251k")
    assert sounds["2"] == "t\u02c8u"
    assert "tw\u02c8\u025blf\u03b8, tw" in sounds["10/12/2019"]  # its own comma included
    assert sounds["ok"].endswith("A")


def test_neighbours_decide_how_a_word_sounds(reader: Reader) -> None:
    vowel, consonant = (dict(said(reader.read(t), t))["the"] for t in ("the owl", "the cat"))
    assert vowel != consonant


@pytest.mark.parametrize("text", ["...!?", "\u2014 \u2014", "( )", ""])
def test_without_a_word_there_is_no_sound(reader: Reader, text: str) -> None:
    script = reader.read(text)
    assert script.words == ()
    assert set(script.owners) <= {NO_WORD}


def test_letters_of_other_scripts_are_named(reader: Reader) -> None:
    text = "\u4f60\u597d \u05e9\u05dc"
    script = said(reader.read(text), text)
    assert [word for word, _ in script] == ["\u4f60", "\u597d", "\u05e9\u05dc"]
    symbol, name = reader.read("symbol").symbols, reader.read("shin lamed").symbols
    assert script[0][1] == symbol
    assert script[2][1].replace(" ", "") == name.replace(" ", "")


@pytest.mark.parametrize(("odd", "plain"), [("\u0663", "3"), ("\u2461", "2"), ("\uff21b", "Ab")])
def test_odd_digits_and_letters_sound_as_the_plain_ones(reader: Reader, odd: str, plain: str) -> None:
    assert reader.read(odd).symbols == reader.read(plain).symbols != ""


def test_endless_numbers_are_read_by_digits_and_marked_in_parts(reader: Reader) -> None:
    script = reader.read("7" * 100)
    assert script.words == (Span(0, 40), Span(40, 80), Span(80, 100))
    seven = reader.read("7").symbols
    assert script.symbols.split() == [seven] * 100


def test_sentences_are_where_they_were_written(reader: Reader) -> None:
    text = " Dr. No left.  Who knows?\nNobody. " + "Word " * 100
    spans = list(reader.sentences(text))
    assert [text[slice(*s)] for s in spans[:3]] == ["Dr. No left.", "Who knows?", "Nobody."]
    assert max(span.length for span in spans) <= 300
    assert "".join(text[slice(*s)] for s in spans[3:]) == ("Word " * 100).strip()


@pytest.mark.parametrize("limit", [1, 7, 12, 40, 1000])
def test_parts_are_cut_between_words_and_complete(limit: int) -> None:
    symbols, owners = "ab cd, efghijklmnop q", list[int]()
    for number, word in enumerate(symbols.split(" ")):
        owners += [NO_WORD if char == "," else number for char in word] + [NO_WORD]
    script = Script(symbols, tuple(owners[:-1]), (Span(0, 1),) * 4)
    parts = list(script.parts(limit))
    assert "".join(part.symbols for part in parts) == symbols
    seen = [{owner for owner in part.owners if owner != NO_WORD} for part in parts]
    assert sum(map(len, seen)) == 4  # no word in two parts
    assert all(len(part.symbols) <= limit or len(words) <= 1 for part, words in zip(parts, seen))
