"""How far a reply is from the end of its first speakable phrase."""

from __future__ import annotations

import pytest

from specstream.engine.core.phrase import FirstPhrase, PhraseLengths


def read(text: str, step: int = 1, lengths: PhraseLengths | None = None) -> int | None:
    """Tokens of ``step`` characters until the phrase is over; None if it never is."""
    phrase = FirstPhrase(lengths or PhraseLengths())
    for count in range(1, -(-len(text) // step) + 1):
        phrase.read(text[: count * step], count)
        if phrase.left is None:
            return count
    return None


def left(lengths: PhraseLengths, tokens: int) -> int | None:
    """What is expected of a phrase that hasn't ended after so many tokens."""
    phrase = FirstPhrase(lengths)
    phrase.read("", tokens)
    return phrase.left


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("I am here. Now", len("I am here. ")),
        ("What is it? Tell", len("What is it? ")),
        ("My friend in the north, listen", len("My friend in the north, ")),
        ("My friend, listen. Go", len("My friend, listen. ")),  # a clause must be longer than that
        ('"Come in!" she said', len('"Come in!" ')),
        ("First a line\nthen", len("First a line\n")),
        ("你好，我是你的朋友。很高兴", len("你好，我是你的朋友。")),
        ("So, I went home. Then", len("So, I went home. ")),  # too short to begin with
        ("Pi is 3.14 or so. Yes", len("Pi is 3.14 or so. ")),
    ],
)
def test_a_phrase_ends_where_a_voice_can_begin(text: str, end: int) -> None:
    assert read(text) == end
    assert read(text, step=4) == -(-end // 4)


def test_a_phrase_without_an_end_is_over_where_a_voice_cuts_it() -> None:
    """Else every token would search the whole reply again, and the reply never go on as for speed."""
    assert read("x" * 300) is not None
    assert read("word " * 100, step=5) is not None


def test_what_follows_the_first_phrase_is_not_read() -> None:
    lengths = PhraseLengths()
    phrase = FirstPhrase(lengths)
    phrase.read("A first phrase. And", 5)
    usual = lengths.usual
    phrase.read("A first phrase. And a second one. And", 11)
    assert lengths.usual == usual
    assert phrase.left is None


def test_the_usual_length_is_learned() -> None:
    lengths = PhraseLengths()
    for _ in range(100):
        FirstPhrase(lengths).read("A first phrase. And", 30)
    assert FirstPhrase(lengths).left == 30
    assert left(lengths, 12) == 18
    for _ in range(100):
        FirstPhrase(lengths).read("A first phrase. And", 5)
    assert FirstPhrase(lengths).left == 5


def test_a_phrase_that_is_longer_than_usual_is_not_believed_to_end_with_the_next_token() -> None:
    """Half of all phrases are; drafting must not stop for the rest of them."""
    lengths = PhraseLengths()
    found = [left(lengths, tokens) for tokens in range(60)]
    assert found[0] == 12
    assert all(now is not None and now >= 3 for now in found)
    assert found == sorted(found, key=lambda n: -(n or 0))


def test_there_is_always_something_left_of_the_shortest_phrases() -> None:
    lengths = PhraseLengths()
    for _ in range(200):
        lengths.add(1)
    assert FirstPhrase(lengths).left == 1
    assert left(lengths, 5) == 1
