"""Responses that begin before a spoken question is over: told to nobody until they are wanted."""

from pathlib import Path
from typing import Any

import anyio.lowlevel
import pytest

from specstream.errors import ModelError
from specstream.listening import Preempt
from specstream.server.journal.sqlite import SqliteJournal
from specstream.testing import ScriptedEngine
from specstream.types import SamplingParams
from tests.server.doubles import WORDS, Gate, HandClock, Wire, WordVoice, settle, wait_for
from tests.server.sessions.test_microphone import Ear, silence, speak, voice

SPOKEN = {"voice": WordVoice}


def early(*texts: Any, **options: Any) -> Ear:
    options.setdefault("engine", ScriptedEngine(["Paris is."]))
    return Ear(*texts, preempt=options.pop("settings", Preempt()), **options)


async def begun(ear: Ear, wire: Wire, count: int = 1) -> None:
    """A pause after all the words, in which the engine is asked."""
    await speak(wire, voice(1.8), silence(0.3))
    await wait_for(lambda: len(ear.engine.requests) == count)
    await settle()
    assert wire.of("response.created") == []


@pytest.mark.parametrize("options", [{"voice": None}, SPOKEN])
async def test_what_was_asked_is_answered_by_the_response_that_was_begun(options: Any) -> None:
    ear, plain = early(**options), Ear(engine=ScriptedEngine(["Paris is."]), **options)
    async with ear.client() as wire:
        await begun(ear, wire)
        await speak(wire, silence(1))
        assert (await wire.done())["status"] == "completed"
    async with plain.client() as without:
        await speak(without, voice(1.8), silence(1.3))
        await without.done()
    assert wire.types() == without.types()
    assert ear.engine.requests == plain.engine.requests
    assert ear.engine.learnt == [False], "nothing is learnt from a guess"
    assert ear.stand.server.counters.early == {"used": 1}
    assert ear.stand.server.counters.responses == {"completed": 1}


async def test_words_that_change_drop_the_response() -> None:
    text = "Tell me a tale now please."
    ear = early(text, engine=ScriptedEngine(["Vain.", "Wanted."]))
    async with ear.client() as wire:
        await speak(wire, voice(1.0), silence(0.3))
        await wait_for(lambda: len(ear.engine.requests) == 1)
        await speak(wire, voice(0.5), silence(1))
        done = await wire.done()
        assert done["output"][0]["content"][0]["text"] == "Wanted."
        assert [m[-1]["content"] for m, _ in ear.engine.requests][-1] == text
        assert ear.stand.server.counters.early["dropped"] == len(ear.engine.requests) - 1
        item = await wire.retrieve(done["output"][0]["id"])
        assert item["status"] == "completed"


@pytest.mark.parametrize("heard_s", [0.3, 3.0])
async def test_only_an_answer_that_was_not_heard_is_forgotten(heard_s: float) -> None:
    """The microphone is off while the reply is heard, so on its clock the user goes on at once."""
    clock, parts = HandClock(), ["Tell me a tale.", "About a dragon."]
    engine = ScriptedEngine([WORDS, "Once."])
    ear = Ear(*parts, engine=engine, voice=WordVoice, clock=clock)
    async with ear.client() as wire:
        await speak(wire, voice(1), silence(0.6))
        while len(wire.of("response.output_audio.delta")) < 12:  # over half a second
            await wire.next()
        clock.advance(heard_s)
        await wire.send("response.cancel")
        assert (await wire.done())["status"] == "cancelled"
        await speak(wire, voice(1), silence(0.6))
        await wire.until("response.created")
        await wait_for(lambda: len(engine.requests) == 2)
        asked = [message["content"] for message in engine.requests[1][0]]
        if heard_s < 0.5:
            assert asked == [" ".join(parts)]
        else:
            assert asked[0] == parts[0] and asked[2:] == [parts[1]] and WORDS.startswith(asked[1])


@pytest.mark.parametrize(
    ("answer", "heard_s", "forgotten"),
    [
        ("Paris.", 0.1, True),
        ("Of course I can tell.", 0.3, True),
        ("Of course I can tell.", 0.8, False),
        ("Paris.", 0.8, False),
    ],
)
@pytest.mark.parametrize("truncates", [False, True])
async def test_an_answer_that_was_sent_whole_is_forgotten_while_it_has_hardly_begun(
    answer: str, heard_s: float, forgotten: bool, truncates: bool
) -> None:
    clock, parts = HandClock(), ["Can you tell me.", "About a dragon."]
    engine = ScriptedEngine([answer, "Once."])
    ear = Ear(*parts, engine=engine, voice=WordVoice, clock=clock)
    async with ear.client() as wire:
        await speak(wire, voice(1), silence(0.6))
        done = await wire.done()
        assert done["status"] == "completed"
        clock.advance(heard_s)
        await speak(wire, voice(0.5))
        await wire.until("input_audio_buffer.speech_started")
        if truncates:
            where = {"item_id": done["output"][0]["id"], "content_index": 0}
            await wire.send("conversation.item.truncate", audio_end_ms=50, **where)
        await speak(wire, voice(0.5), silence(0.6))
        await wait_for(lambda: len(engine.requests) == 2)
    asked = [message["content"] for message in engine.requests[1][0]]
    if forgotten:
        assert asked == [" ".join(parts)]
    elif not truncates:  # else it is as the client says
        assert asked == [parts[0], answer, parts[1]]


async def test_what_is_committed_by_hand_is_a_message_of_its_own() -> None:
    ear = Ear("One.", "Two.", engine=ScriptedEngine(["Three."]), voice=None)
    async with ear.client(turn_detection=None) as wire:
        for _ in range(2):
            await speak(wire, voice(1))
            await wire.send("input_audio_buffer.commit")
            await wire.until("conversation.item.done")
        await wire.send("response.create")
        await wire.done()
    assert [m["content"] for m in ear.engine.requests[0][0]] == ["One.", "Two."]


@pytest.mark.parametrize("change", ["item", "settings"])
async def test_a_conversation_that_has_changed_meanwhile_gets_a_new_response(change: str) -> None:
    ear = early(engine=ScriptedEngine(["Old.", "New."]))
    async with ear.client() as wire:
        await begun(ear, wire)
        if change == "item":
            content = [{"type": "input_text", "text": "By the way, be brief."}]
            item = {"type": "message", "role": "user", "content": content}
            await wire.send("conversation.item.create", item=item)
            await wire.until("conversation.item.done")
        else:
            await wire.configure(instructions="Be brief.")
        await speak(wire, silence(1))
        done = await wire.done()
        assert done["output"][0]["content"][0]["text"] == "New."
    assert ear.stand.server.counters.early == {"dropped": 1}


async def test_a_response_that_breaks_before_it_is_wanted_is_made_again() -> None:
    class FailsOnce(ScriptedEngine):
        """Its first reply breaks when it begins."""

        def generate(self, *args: Any, **options: Any) -> Any:
            if not self.requests:
                self.requests.append(([], SamplingParams()))
                raise ModelError("once")
            return super().generate(*args, **options)

    ear = early(engine=FailsOnce(["Paris."]))
    async with ear.client() as wire:
        await begun(ear, wire)
        await speak(wire, silence(1))
        assert (await wire.done())["status"] == "completed"
        assert wire.of("error") == []
    assert ear.stand.server.counters.early == {"failed": 1}


async def test_a_session_that_is_written_down_knows_it_once_its_client_does(tmp_path: Path) -> None:
    ear = early(journal=SqliteJournal(tmp_path))
    async with ear.stand.running(), ear.stand.client("?resumable=1") as wire:
        await begun(ear, wire)
        await speak(wire, silence(1))
        assert (await wire.done())["status"] == "completed"
        assert [event["specstream"]["seq"] for event in wire.seen] == list(range(len(wire.seen)))
    assert ear.stand.server.counters.early == {"used": 1}


async def test_a_client_that_goes_takes_the_response_with_it() -> None:
    gate = Gate(shut=True)
    ear = early(engine=ScriptedEngine(["One two three."], gate=gate))
    async with ear.client() as wire:
        await begun(ear, wire)
    assert ear.stand.server.counters.early == {} and not ear.stand.server.counters.responses
    assert [reply.report.finish_reason for reply in ear.engine.generations] == ["cancelled"]


async def test_who_answers_by_hand_gets_nothing_early() -> None:
    ear = early()
    turns = {"type": "server_vad", "create_response": False}
    async with ear.client(turn_detection=turns) as wire:
        await speak(wire, voice(1.8), silence(1.3))
        await wire.until("conversation.item.done")
        await settle()
        assert ear.engine.requests == []
        await wire.send("response.create")
        assert (await wire.done())["status"] == "completed"


async def test_a_response_of_its_own_is_none_of_the_questions() -> None:
    ear = early(engine=ScriptedEngine(["Paris.", "Beside."]))
    async with ear.client() as wire:
        await begun(ear, wire)
        await wire.send("response.create", response={"conversation": "none"})
        assert (await wire.done())["status"] == "completed"
        await speak(wire, silence(1))
        done = await wire.done()
        assert done["output"][0]["content"][0]["text"] == "Paris."
    assert ear.stand.server.counters.early == {"used": 1}


async def test_the_rest_of_a_question_is_one_with_its_beginning() -> None:
    """Whether the answer to the first part was begun or not: nobody has heard it."""
    parts = ["Can you tell me", "when the museum opens?"]
    gate = Gate(shut=True)
    ear = Ear(*parts, engine=ScriptedEngine(["Tell you what?", "At nine."], gate=gate))
    async with ear.client(transcription={}) as wire:
        await speak(wire, voice(1), silence(0.6))
        await wire.until("response.created")
        await speak(wire, voice(1.5))
        assert (await wire.done())["status_details"]["reason"] == "turn_detected"
        gate.open()
        await speak(wire, silence(0.6))
        done = await wire.done()
        first, rest = wire.of("transcription.completed")
        assert rest["specstream"]["resumes"] == first["item_id"]
        assert "resumes" not in first["specstream"]
        assert done["output"][0]["content"][0]["text"] == "At nine."
        assert ear.engine.requests[-1][0] == [{"role": "user", "content": " ".join(parts)}]
        await wire.send("conversation.item.delete", item_id=first["item_id"])
        await wire.until("conversation.item.deleted")
        await wire.ask("Sure?")
        await wire.done()
        assert ear.engine.requests[-1][0][0] == {"role": "user", "content": parts[1]}
        await anyio.lowlevel.checkpoint()
