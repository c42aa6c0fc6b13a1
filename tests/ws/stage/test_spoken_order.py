"""Speech of a remote voice against the phrases of its turn."""

from __future__ import annotations

import pytest

from specstream.types import Phrase, Revoke, Span, Speech
from specstream.ws.stage.codec import Violation
from specstream.ws.stage.spoken_order import SpokenOrder


def phrase(index: int, start: int, end: int) -> Phrase:
    return Phrase("x" * (end - start), Span(start, end), Span(index, index + 1), index)


ONE, TWO, THREE = phrase(0, 0, 5), phrase(1, 5, 9), phrase(2, 9, 12)


def speech(said: Phrase, start: int, end: int, *, last: bool = False) -> Speech:
    where = said.chars, said.tokens, said.index
    return Speech(b"\0\0" * (end - start), 8000, Span(start, end), (), *where, last)


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
