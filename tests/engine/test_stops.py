from __future__ import annotations

import random

from specstream.engine.stops import StopMatcher


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
