"""Speech of a remote voice against the phrases of its turn."""

import pytest

from specstream.remote.frames import Violation
from specstream.remote.guards import SpokenOrder
from specstream.types import Mark, Phrase, Revoke, Span, Speech


def phrase(index: int, start: int, end: int) -> Phrase:
    return Phrase("x" * (end - start), Span(start, end), Span(index, index + 1), index)


ONE, TWO, THREE = phrase(0, 0, 5), phrase(1, 5, 9), phrase(2, 9, 12)


def speech(
    said: Phrase, start: int, end: int, *marks: tuple[int, int, int, int], last: bool = False
) -> Speech:
    """Each mark: its first and last sample, its first and last character."""
    where = said.chars, said.tokens, said.index
    made = tuple(Mark("word", "x", Span(a, b), Span(c, d)) for a, b, c, d in marks)
    return Speech(b"\0\0" * (end - start), 8000, Span(start, end), made, *where, last)


def order_of(*sent: Phrase | Revoke) -> SpokenOrder:
    made = SpokenOrder()
    for item in sent:
        made.send(item)
    return made


def test_phrases_one_after_the_other() -> None:
    order = order_of(ONE, TWO)
    for one in (speech(ONE, 0, 80), speech(ONE, 80, 80, last=True), speech(TWO, 80, 90, last=True)):
        order.check(one)
    order.finish()


def test_a_withdrawn_phrase_gives_its_place_to_the_next() -> None:
    order = order_of(ONE, TWO, Revoke(5, drafted=True), THREE)
    order.check(speech(ONE, 0, 80, last=True))
    order.check(speech(TWO, 80, 85))
    order.revoke(Revoke(5, drafted=True))
    order.check(speech(THREE, 80, 90, last=True))
    order.finish()


def test_a_phrase_that_is_withdrawn_may_be_passed_over() -> None:
    order = order_of(ONE, TWO, Revoke(5, drafted=True), Revoke(3), THREE)
    order.check(speech(ONE, 0, 80))
    order.revoke(Revoke(5, drafted=True))
    order.revoke(Revoke(3))  # in the middle of a phrase, whose audio stays
    order.check(speech(THREE, 80, 90, last=True))
    order.finish()


@pytest.mark.parametrize("early", [speech(THREE, 80, 90), speech(TWO, 80, 90), speech(ONE, 80, 90)])
def test_speech_of_text_that_may_not_be_spoken_now(early: Speech) -> None:
    """Text behind an unanswered revoke, withdrawn text, a phrase that is over."""
    order = order_of(ONE, TWO, Revoke(5), THREE)
    order.check(speech(ONE, 0, 80, last=True))
    if early.phrase == 1:
        order.revoke(Revoke(5))
    with pytest.raises(Violation, match=f"phrase {early.phrase} "):
        order.check(early)


@pytest.mark.parametrize("said", [(), (speech(ONE, 0, 80),), (speech(TWO, 0, 80, last=True),)])
def test_a_phrase_without_its_end(said: tuple[Speech, ...]) -> None:
    order = order_of(ONE, TWO)
    for one in said:
        order.check(one)
    with pytest.raises(Violation, match="phrase 0 has no last piece"):
        order.finish()


def test_marks_in_order_may_be_early_late_or_rounded() -> None:
    order = order_of(ONE, TWO, Revoke(5), THREE)
    order.check(speech(ONE, 0, 80, (0, 30, 0, 2), (30, 200, 2, 5)))
    order.check(speech(ONE, 80, 200, (10, 20, 0, 0), last=True))
    order.check(speech(TWO, 200, 280, (200, 900, 5, 9)))
    order.revoke(Revoke(5))  # what the phrase still had to say was dropped
    order.check(speech(THREE, 200, 300, (200, 500, 9, 12), last=True))
    order.finish()


@pytest.mark.parametrize(
    ("marks", "why"),
    [
        ([(80, 90, 0, 5)], "covers characters 0 to 5"),
        ([(80, 90, 5, 10)], "covers characters 5 to 10"),
        ([(79, 90, 5, 9)], "covers samples 79 to 90"),
        ([(90, 89, 5, 9)], "covers samples 90 to 89"),
        ([(80, 501, 5, 9)], "audio ends at 300"),
        ([(80, 10**8, 5, 9)], "longer than such a text takes"),
        ([(290, 300, 5, 9), (80, 90, 5, 9)], "at sample 80 came after"),
    ],
)
def test_marks_that_do_not_fit_their_phrase(marks: list[tuple[int, int, int, int]], why: str) -> None:
    order = order_of(ONE, TWO)
    order.check(speech(ONE, 0, 80, last=True))
    with pytest.raises(Violation, match=f"phrase 1 has a wrong mark: .*{why}"):
        order.check(speech(TWO, 80, 300, *marks, last=True))
