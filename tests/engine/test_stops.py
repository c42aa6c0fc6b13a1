import random

from specstream.engine.core.detokenizer import Repeats, StopMatcher


def reference(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    """Look at the whole text after every piece."""
    text = ""
    for piece in pieces:
        text += piece
        found = [text.find(stop) for stop in stops if stop in text]
        if found:
            return text[: min(found)], True
    return text, False


def test_text_shown_is_that_of_a_search_after_every_piece() -> None:
    """5,000 fuzzed replies over a small alphabet, so that near misses are common."""
    rng = random.Random(3)
    stopped = 0
    for _ in range(5000):
        stops = ["".join(rng.choices("ab", k=rng.randint(1, 4))) for _ in range(rng.randint(0, 3))]
        pieces = ["".join(rng.choices("abc", k=rng.randint(0, 3))) for _ in range(12)]
        matcher = StopMatcher(stops)
        shown = ""
        for piece in pieces:
            shown += matcher.add(piece)
            assert not any(stop in shown for stop in stops)
            if matcher.stopped:
                break
        shown += matcher.finish()
        assert (shown, matcher.stopped) == reference(pieces, stops)
        stopped += matcher.stopped
    assert 1000 < stopped < 4500


def test_nothing_is_held_back_without_need() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.add("one line\n") == "one line"
    assert matcher.add("more") == "\nmore"
    assert StopMatcher([]).add("x\n") == "x\n"


def looping(text: str, most: int = 3) -> str:
    repeats = Repeats(most)
    for end in range(1, len(text) + 1):
        repeats.read(text[:end])
    return repeats.looping


def test_a_sentence_that_comes_too_often_is_noticed_however_it_is_marked() -> None:
    assert (
        looping("I like the sea. Do you? I like the sea! Yes. I like THE sea. And") == "I like THE sea."
    )
    assert looping("I like the sea. Do you? I like the sea! Yes.") == ""
    assert looping("one two three\n" * 3) == "one two three"
    assert looping("I like the sea.\n" * 2, most=2) == "I like the sea."


def test_short_sentences_and_unfinished_ones_are_not_counted() -> None:
    assert looping("No. No. No. No! I am. I am. I am. ") == ""
    assert looping("It costs 3.50 here and it costs 3.50 there and it costs 3.50 too. ") == ""


def test_a_text_without_sentences_is_read_once() -> None:
    repeats, text = Repeats(3), ""
    for _ in range(20_000):  # hours, if each call searched all of it
        text += "item, two; "
        repeats.read(text)
    for _ in range(5_000):
        text += "."
        repeats.read(text)
    assert repeats.looping == ""
    repeats.read(text + " I like the sea." * 3 + " ")
    assert repeats.looping == "I like the sea."
