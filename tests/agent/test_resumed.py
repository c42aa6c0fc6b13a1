"""A turn that was ended in a pause and goes on is one question with one answer."""

import anyio
import pytest

from specstream.agent import Preempt, ReplyEnded, ReplyPaused, ReplyResumed, ReplyStarted
from specstream.testing import ScriptedEngine, ScriptedRecognizer
from tests.support.rooms import Room
from tests.support.turns import TEXT, first

pytestmark = pytest.mark.virtual_time
PARTS = ["Can you tell me", "when the museum opens?"]
WHOLE = " ".join(PARTS)


async def ask(room: Room, pause_ms: int) -> None:
    await room.speak(300)
    await room.speak(pause_ms, silence=True)
    await room.speak(400)
    await room.speak(600, silence=True)
    await anyio.sleep(8)


@pytest.mark.parametrize("pause_ms", [400, 700])
@pytest.mark.parametrize("preempt", [None, Preempt()])
async def test_the_rest_of_a_question_withdraws_the_reply_to_its_beginning(
    pause_ms: int, preempt: Preempt | None
) -> None:
    """Turns end after 300 ms here, and the agent speaks at once."""
    room = Room(PARTS, engine=ScriptedEngine([TEXT, "At nine."]), preempt=preempt)
    async with room.talking():
        await ask(room, pause_ms)
        assert room.told() == [WHOLE, "At nine."]
    assert room.engine.requests[-1][0] == [{"role": "user", "content": WHOLE}]
    assert [started.asked for started in room.made(ReplyStarted)] == [PARTS[0], WHOLE]
    withdrawn, answered = room.made(ReplyEnded)
    assert not withdrawn.outcome.complete and answered.outcome.complete
    assert withdrawn.outcome.played_ms <= 500


async def test_a_reply_that_was_begun_early_is_withdrawn_as_well() -> None:
    parts = ["Tell me a tale.", "About a dragon."]
    engine = ScriptedEngine([TEXT, "Once upon a time."])
    room = Room(parts, engine=engine, preempt=Preempt())
    async with room.talking():
        await room.speak(400)
        await room.speak(500, silence=True)
        await room.speak(300)
        await room.speak(600, silence=True)
        await anyio.sleep(8)
        assert room.told() == [" ".join(parts), "Once upon a time."]
    assert room.agent.preempted.hits == 1


async def test_who_heard_more_of_the_reply_asks_something_else() -> None:
    room = Room(PARTS, engine=ScriptedEngine([TEXT, "At nine."]))
    async with room.talking():
        await ask(room, 1300)
        told = room.told()
    assert told[0] == PARTS[0] and told[2:] == [PARTS[1], "At nine."]
    assert TEXT.startswith(told[1]) and told[1] != ""


async def test_who_was_answered_in_a_word_asks_something_else() -> None:
    room = Room(["Is it open?", "And tomorrow?"], engine=ScriptedEngine(["Yes.", "At nine."]))
    async with room.talking():
        await ask(room, 1300)
        assert room.told() == ["Is it open?", "Yes.", "And tomorrow?", "At nine."]


async def test_who_is_answered_and_goes_on_much_later_asks_something_else() -> None:
    room = Room(PARTS, engine=ScriptedEngine(["", "At nine."]))
    async with room.talking():
        await ask(room, 3000)
        assert room.told() == [PARTS[0], PARTS[1], "At nine."]


async def test_a_typed_question_stays_what_it_is() -> None:
    room = Room(PARTS[1:], engine=ScriptedEngine([TEXT, "At nine."]))
    async with room.talking() as agent:
        await agent.say("Hello.")
        await anyio.sleep(0.1)
        await room.speak(400)
        await room.speak(600, silence=True)
        await anyio.sleep(8)
        told = room.told()
    assert told[0] == "Hello." and told[-2:] == [PARTS[1], "At nine."]
    assert first(0) in ("", told[1]) or TEXT.startswith(told[1])


@pytest.mark.parametrize("at_s", [0.1, 0.5, 0.75])
async def test_a_typed_question_keeps_no_spoken_one_from_being_joined(at_s: float) -> None:
    """It comes during the first part, in the pause and during the second."""
    room = Room(PARTS, engine=ScriptedEngine([TEXT, "At nine.", "Two."]))
    async with room.talking() as agent, anyio.create_task_group() as tasks:

        async def type_() -> None:
            await anyio.sleep(at_s)
            await agent.say("One and one?")

        tasks.start_soon(type_)
        await ask(room, 400)
    assert room.told() == [WHOLE, "At nine.", "One and one?", "Two."]


async def test_a_reply_that_was_heard_and_stopped_by_hand_stays() -> None:
    room = Room(["Tell a story.", "What is your name?"], engine=ScriptedEngine([TEXT, "Next."]))
    async with room.talking() as agent:
        await room.speak(300)
        await room.speak(1500, silence=True)
        agent.interrupt()
        await anyio.sleep(0.1)
        await room.speak(300)
        await room.speak(5000, silence=True)
        told = room.told()
    assert told[0] == "Tell a story." and told[2:] == ["What is your name?", "Next."]
    assert told[1] and TEXT.startswith(told[1])


async def test_a_reply_that_begins_paused_says_so() -> None:
    room = Room(["Tell a story.", ""], recognizer=ScriptedRecognizer(["Tell a story.", ""], takes_s=1))
    async with room.talking():
        await room.speak(300)
        await room.speak(700, silence=True)
        await room.speak(200)
        await room.speak(8000, silence=True)
    kinds = [type(e.item) for e in room.events if isinstance(e.item, ReplyPaused | ReplyResumed)]
    assert kinds and kinds == [ReplyPaused, ReplyResumed] * (len(kinds) // 2)
