"""Turn-taking: what each event of a listener means for the reply and for the next question."""

from typing import Any

import pytest

from specstream.errors import AdapterFailed
from specstream.listening.events import (
    ListenerEvent,
    ListeningFailed,
    TurnEnded,
    TurnHeard,
    TurnLost,
    TurnPartial,
    TurnPaused,
    TurnStarted,
)
from specstream.listening.interfaces import Transcript
from specstream.listening.taking import Guess, Question, Taken, TurnTaking

FAILURE = AdapterFailed("no model")


def said(text: str) -> Transcript:
    return Transcript(text, language="en")


def follow(taking: TurnTaking, *events: ListenerEvent, **reply: Any) -> list[Taken]:
    return [taking.take(event, **reply) for event in events]


def test_a_voice_pauses_and_words_claim_the_floor() -> None:
    taking = TurnTaking()
    voice, one, partial, paused, ended, heard = follow(
        taking,
        TurnStarted(0, 100.0, 0.0),
        TurnPartial(0, said("Where")),
        TurnPartial(0, said("Where is")),
        TurnPaused(0, said("Where is it?")),
        TurnEnded(0, 0.0, 900.0),
        TurnHeard(0, said("Where is it?")),
        speaking=True,
    )
    assert voice == Taken(0, "voice") and ended == Taken()
    assert one.floor is None and partial.floor == "claimed"
    assert partial.guess == Guess("Where is", 0) and not partial.guess.paused
    assert paused.floor is None and paused.guess is not None and paused.guess.paused
    assert paused.guess.language == "en"
    assert heard == Taken(0, "claimed", question=Question("Where is it?", 0))
    assert taking.unclear == set()


def test_where_a_voice_is_enough_it_claims_the_floor() -> None:
    taking = TurnTaking("voice")
    started, heard = follow(
        taking, TurnStarted(0, 100.0, 0.0), TurnHeard(0, said("Mm-hm.")), speaking=True
    )
    assert started == Taken(0, "claimed")
    assert heard.question == Question("Mm-hm.", 0), "the reply has been interrupted already"


@pytest.mark.parametrize("speaking", [True, False])
def test_who_only_listens_asks_nothing_while_the_agent_speaks(speaking: bool) -> None:
    taking = TurnTaking()
    _, partial, heard = follow(
        taking,
        TurnStarted(0, 100.0, 0.0),
        TurnPartial(0, said("Mm-hm.")),
        TurnHeard(0, said("Mm-hm.")),
        speaking=speaking,
    )
    assert (partial.guess is None) is speaking
    assert heard.floor == ("free" if speaking else "claimed")
    assert (heard.question is None) is speaking


@pytest.mark.parametrize("end", [TurnHeard(0, said(" ")), TurnLost(0, FAILURE)])
def test_a_turn_without_words_frees_the_floor(end: ListenerEvent) -> None:
    taking = TurnTaking()
    taking.take(TurnStarted(0, 0.0, 0.0))
    assert taking.unclear == {0}
    assert taking.take(end) == Taken(0, "free") and taking.unclear == set()


def test_a_listener_that_fails_frees_the_floor_of_all_turns() -> None:
    taking = TurnTaking()
    follow(taking, TurnStarted(0, 0.0, 0.0), TurnEnded(0, 0.0, 500.0), TurnStarted(1, 900.0, 800.0))
    assert taking.unclear == {0, 1}
    assert taking.take(ListeningFailed(FAILURE)) == Taken(None, "free")
    assert taking.unclear == set()


def test_a_turn_that_was_cleared_is_forgotten_at_the_next() -> None:
    taking = TurnTaking()
    follow(taking, TurnStarted(0, 0.0, 0.0), TurnStarted(1, 900.0, 800.0))
    assert taking.unclear == {1}


@pytest.mark.parametrize(
    ("at_ms", "played_ms", "resumes"),
    [(1500.0, 0.0, True), (2500.0, 500.0, True), (2501.0, 0.0, False), (1500.0, 501.0, False)],
)
def test_who_goes_on_soon_and_unanswered_resumes_the_question(
    at_ms: float, played_ms: float, resumes: bool
) -> None:
    taking = TurnTaking()
    follow(taking, TurnStarted(0, 0.0, 0.0), TurnEnded(0, 0.0, 500.0), TurnHeard(0, said("Tell me")))
    _, partial, _, heard = follow(
        taking,
        TurnStarted(1, at_ms, at_ms),
        TurnPartial(1, said("a tale")),
        TurnEnded(1, at_ms, at_ms + 500.0),
        TurnHeard(1, said("a tale.")),
        speaking=True,
        played_ms=played_ms,
    )
    assert partial.guess is not None and partial.guess.resumes is resumes
    assert heard.question == Question("a tale.", 1, resumes)


def test_a_reply_that_plays_on_until_the_words_come_is_answered() -> None:
    """As at a server, whose clients don't pause at a voice."""
    taking = TurnTaking()
    follow(
        taking,
        TurnStarted(0, 0.0, 0.0),
        TurnEnded(0, 0.0, 500.0),
        TurnHeard(0, said("Tell me")),
        TurnStarted(1, 700.0, 700.0),
    )
    partial = taking.take(TurnPartial(1, said("a tale")), speaking=True, played_ms=900.0)
    assert partial.floor == "claimed"
    heard = taking.take(TurnHeard(1, said("a tale.")))
    assert heard.question == Question("a tale.", 1, resumes=False)
