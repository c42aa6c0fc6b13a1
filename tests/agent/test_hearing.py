"""An agent with ears: a voice pauses it, a word interrupts it, a cough does not."""

from __future__ import annotations

import math

import anyio
import pytest

from specstream.agent import ReplyEnded, ReplyPaused, ReplyResumed, ReplyStarted
from specstream.errors import AdapterFailed, RequestError
from specstream.listening.events import ListeningFailed, TurnHeard, TurnLost
from tests.support.rooms import RATE, Room
from tests.support.turns import TEXT, first

pytestmark = pytest.mark.virtual_time


async def test_what_is_said_is_answered() -> None:
    room = Room(["Hello there."])
    async with room.talking():
        await room.speak(400)
        await room.speak(600, silence=True)
        await anyio.sleep(5)
        assert room.told() == ["Hello there.", TEXT]
    assert room.made(ReplyEnded)[0].outcome.complete
    assert not room.made(ReplyPaused)


async def test_a_word_interrupts_and_the_next_prompt_has_what_was_heard() -> None:
    room = Room(["Wait a moment please."])
    async with room.talking() as agent:
        await agent.say("Tell me")
        await anyio.sleep(0.5)
        await room.speak(400)
        assert room.made(ReplyPaused)[0].played_ms == pytest.approx(500, abs=1)
        heard = room.made(ReplyEnded)[0].outcome
        assert not heard.complete and heard.heard == first(2)
        assert 500 <= heard.played_ms <= 580, "nothing was played after the voice but the lead"
        await room.speak(600, silence=True)
        await anyio.sleep(5)
        assert room.told() == ["Tell me", first(2), "Wait a moment please.", "Fine."]
    assert room.engine.requests[-1][0][1]["content"] == first(2)
    assert not room.made(ReplyResumed)


async def test_a_cough_pauses_and_the_reply_goes_on_without_losing_a_sample() -> None:
    room, alone = Room([""]), Room([""])
    async with alone.talking() as agent:
        await agent.say("Tell me")
    async with room.talking() as agent:
        await agent.say("Tell me")
        await anyio.sleep(0.5)
        await room.speak(200)
        await room.speak(600, silence=True)
        await anyio.sleep(5)
        assert room.told() == ["Tell me", TEXT]
    assert len(room.made(ReplyPaused)) == len(room.made(ReplyResumed)) == 1
    assert room.made(ReplyEnded)[0].outcome.complete
    assert room.sound.pcm == alone.sound.pcm
    assert not [m for m in room.made(TurnHeard) if m.transcript.text]


@pytest.mark.parametrize("said", ["Mm hmm.", "Uh-huh.", "Right.", "Ja."])
async def test_a_listeners_word_is_no_question_while_the_agent_speaks(said: str) -> None:
    room, alone = Room([said]), Room([""])
    async with alone.talking() as agent:
        await agent.say("Tell me")
    async with room.talking() as agent:
        await agent.say("Tell me")
        await anyio.sleep(0.5)
        await room.speak(400)
        await room.speak(600, silence=True)
        await anyio.sleep(5)
        assert room.told() == ["Tell me", TEXT]
    assert room.made(ReplyEnded)[0].outcome.complete
    assert room.sound.pcm == alone.sound.pcm


async def test_the_same_word_is_a_question_when_nobody_speaks() -> None:
    room = Room(["Right."])
    async with room.talking():
        await room.speak(400)
        await room.speak(600, silence=True)
        await anyio.sleep(5)
        assert room.told() == ["Right.", TEXT]


async def test_one_word_interrupts_when_it_is_there_again() -> None:
    room = Room(["Stop."])
    async with room.talking() as agent:
        await agent.say("Tell me")
        await anyio.sleep(0.5)
        await room.speak(180)
        assert not room.made(ReplyEnded)
        await room.speak(300)
        assert not room.made(ReplyEnded)[0].outcome.complete
        await room.speak(600, silence=True)
        await anyio.sleep(5)
        assert room.told()[2:] == ["Stop.", "Fine."]


@pytest.mark.parametrize("noise", ["...", "?!", " "])
async def test_marks_without_a_letter_are_no_words(noise: str) -> None:
    room = Room([noise])
    async with room.talking() as agent:
        await agent.say("Tell me")
        await anyio.sleep(0.5)
        await room.speak(300)
        await room.speak(600, silence=True)
    assert room.told() == ["Tell me", TEXT]


async def test_a_turn_that_is_lost_resumes_the_reply() -> None:
    room = Room([AdapterFailed("no model")])
    async with room.talking() as agent:
        await agent.say("Tell me")
        await anyio.sleep(0.5)
        await room.speak(300)
        await room.speak(600, silence=True)
    assert room.made(TurnLost) and room.made(ReplyResumed)
    assert room.told() == ["Tell me", TEXT]


async def test_a_detector_that_breaks_resumes_the_reply_and_typing_still_works() -> None:
    room = Room([""])
    async with room.talking() as agent:
        await agent.say("Tell me")
        await anyio.sleep(0.5)
        await room.speak(100)
        room.detector.error = RuntimeError("detector on fire")
        await room.speak(40)
        await agent.say("And?")
        await anyio.sleep(5)
        assert room.told() == ["Tell me", TEXT, "And?", "Fine."]
    assert len(room.made(ListeningFailed)) == 1


async def test_a_reply_that_begins_while_somebody_speaks_waits_for_them() -> None:
    room = Room([""])
    async with room.talking() as agent:
        await room.speak(100)
        await agent.say("Tell me")
        await anyio.sleep(3)
        assert room.sound.ms == 0
        await room.speak(600, silence=True)
        await anyio.sleep(5)
        assert room.sound.ms == 2000
    assert [e.asked for e in room.made(ReplyStarted)] == ["Tell me"]


async def test_a_recogniser_that_hangs_costs_a_turn_and_the_reply_goes_on() -> None:
    room = Room([""], deadline_s=2.0)
    room.recognizer.takes_s = math.inf
    async with room.talking() as agent:
        await agent.say("Tell me")
        await anyio.sleep(0.5)
        await room.speak(300)
        await room.speak(600, silence=True)
        await anyio.sleep(5)
        assert room.told() == ["Tell me", TEXT]
        await agent.say("And?")
    (lost,) = room.made(TurnLost)
    assert "longer than 2 s" in str(lost.error)
    assert room.told() == ["Tell me", TEXT, "And?", "Fine."]


async def test_half_a_sample_is_refused_nothing_is_taken_and_the_agent_lives() -> None:
    room = Room(["Hello there."])
    async with room.talking() as agent:
        for bad in (b"\1", b"\1" * 333):
            with pytest.raises(RequestError, match="even number of bytes"):
                await agent.hear(bad)
        await agent.hear(b"")
        await room.speak(400)
        await room.speak(600, silence=True)
    assert room.told() == ["Hello there.", TEXT]


async def test_minutes_of_silence_are_no_turn() -> None:
    room = Room(["Hello there."])
    async with room.talking() as agent:
        for _ in range(5):
            await agent.hear(bytes(2 * RATE * 60))
        assert room.events == []
        await room.speak(400)
        await room.speak(600, silence=True)
    assert room.told() == ["Hello there.", TEXT]


async def test_what_was_said_last_is_answered_before_the_end() -> None:
    room = Room(["Bye now."])
    async with room.talking():
        await room.speak(300)  # the microphone is switched off in mid-turn
    assert room.told() == ["Bye now.", TEXT]
    assert room.made(ReplyEnded)[0].outcome.complete


@pytest.mark.parametrize("seed", range(6))
async def test_any_mix_of_coughs_words_and_typing_leaves_a_history_of_what_was_heard(
    seed: int,
) -> None:
    from random import Random

    random = Random(seed)
    texts = [random.choice(["", "Hm yes.", "Wait.", "..."]) for _ in range(12)]
    room = Room(texts)
    room.engine._replies = [TEXT]
    async with room.talking() as agent:
        for _ in range(8):
            if random.random() < 0.4:
                await agent.say("typed")
            await room.speak(random.randrange(0, 500))
            await room.speak(random.randrange(0, 1500), silence=True)
    said = [m["content"] for m in agent.messages if m["role"] == "assistant"]
    asked = [e.asked for e in room.made(ReplyStarted)]
    # A reply is withdrawn where the question that it answers goes on.
    kept = [not whole.startswith(f"{first} ") for first, whole in zip(asked, [*asked[1:], ""])]
    outcomes = [e.outcome for e, keep in zip(room.made(ReplyEnded), kept, strict=True) if keep]
    assert said == [o.heard for o in outcomes if o.heard]
    assert all(TEXT.startswith(text) for text in said)
    users = [m["content"] for m in agent.messages if m["role"] == "user"]
    assert users == [text for text, keep in zip(asked, kept, strict=True) if keep]
