import random

import pytest

from specstream_adapters.voice.shared import pieces, plain, speakable, tokens


def words(text: str) -> list[str]:
    return [text[token.start : token.end] for token in tokens(text)]


@pytest.mark.parametrize(
    ("text", "heard"),
    [
        ("snake_case a*b", "snake_case a*b"),
        ("C# is #1", "C# is #1"),
        ("ok \U0001f44d\U0001f3fd\u200d!", "ok   \u200d!"),
        ("20\u00b0 \u2192 \u00bd", "20\u00b0   \u00bd"),
        ("a\x00b\x01c\ud800d\ufeff", "a b c d "),
        ("co\u00adop\nnext", "co\u00adop\nnext"),
    ],
)
def test_plain(text: str, heard: str) -> None:
    assert plain(text) == heard


def test_plain_keeps_every_offset() -> None:
    rng = random.Random(1)
    for _ in range(300):
        text = "".join(chr(rng.randrange(0x110000)) for _ in range(rng.randrange(20)))
        heard = plain(text)
        assert len(heard) == len(text)
        assert all(h in (t, " ") for h, t in zip(heard, text, strict=True))
        heard.encode("utf-8")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"Well," she said\u2014"it\u2019s 3.50!"', ["Well", "she", "said", "it\u2019s", "3.50"]),
        ("$3.50 50% p.m. e-mail <b>x</b>", ["$3.50", "50%", "p.m", "e-mail", "b", "x", "/b"]),
        ("\u4f60\u597d\uff0cworld", ["\u4f60", "\u597d", "world"]),
        (" ... -- ", []),
    ],
)
def test_tokens(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_speakable() -> None:
    assert speakable("  7 ")
    assert speakable("\u4f60")
    assert not speakable(" ?! $ \u00a7 ")


@pytest.mark.parametrize("limit", [10, 37, 500])
def test_pieces_tile_the_text_and_cut_at_breaths(limit: int) -> None:
    rng = random.Random(limit)
    text = "".join(rng.choice("abc  ,.\n") for _ in range(3000))
    cut = list(pieces(text, limit))
    assert [piece.start for piece in cut] == [0, *(piece.end for piece in cut[:-1])]
    assert cut[-1].end == len(text)
    assert all(0 < piece.length <= limit for piece in cut)


def test_pieces_prefer_sentences_to_clauses_to_words() -> None:
    text = "One two three four, five six seven. Eight nine ten eleven, twelve thirteen"
    first = next(pieces(text, 50))
    assert text[: first.end] == "One two three four, five six seven. "
    assert [piece.length for piece in pieces("x" * 25, 10)] == [10, 10, 5]
