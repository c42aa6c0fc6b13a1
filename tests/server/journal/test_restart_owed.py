"""What a process owed when it ended: replies, turns without an answer, audio that nobody committed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from specstream.errors import AdapterUnavailable
from specstream.server.journal.sqlite import SqliteJournal
from specstream.testing import ScriptedEngine
from tests.server.doubles import Gate, Wire, WordVoice, wait_for
from tests.server.journal.test_restart import resumed, served
from tests.server.sessions.test_microphone import Ear, configure, silence, speak, voice
from tests.server.sessions.test_resume import Client, ask

ASIDE: dict[str, Any] = {
    "conversation": "none",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Aside."}]}
    ],
}


async def begun(client: Client) -> Wire:
    """A session's first connection, whose events the client keeps."""
    wire = Wire(await client.begin())
    wire.seen = client.events
    return wire


async def speak_by_hand(wire: Wire) -> None:
    """A second of speech, committed without a turn detector."""
    await configure(wire, turn_detection=None)
    await speak(wire, voice(1.0))
    await wire.send("input_audio_buffer.commit")


def prompt(engine: ScriptedEngine) -> list[str]:
    return [str(message["content"]) for message in engine.requests[-1][0]]


@pytest.mark.parametrize(
    ("how", "goes_on"),
    [("no voice", False), ("a voice that fails", True), ("a voice that fails", False)],
)
async def test_a_reply_that_the_next_server_can_not_make_ends_as_far_as_it_was_sent(
    tmp_path: Path, how: str, goes_on: bool
) -> None:
    asked = 0

    def fails() -> WordVoice:
        nonlocal asked
        asked += 1
        if asked > 1:  # the start makes one
            raise AdapterUnavailable("the voice's server is not there yet")
        return WordVoice()

    gate = Gate(shut=False)
    gate.shut(after=5)
    text = "One two three. Four five six."
    first = served(SqliteJournal(tmp_path), text, gate=gate, reproducible=goes_on)
    made = None if how == "no voice" else fails
    second = served(SqliteJournal(tmp_path), text, reproducible=goes_on, voice=made)
    async with first.running(), second.running():
        client = Client(first)
        socket = await client.begin()
        await ask(socket, output_modalities=["audio"])
        with anyio.move_on_after(0.3):
            await client.read(socket, 10_000)
        socket.transport.abort()
        async with resumed(client, second) as wire:
            while (event := await wire.next())["type"] != "response.done":
                pass
            done = event["response"]
            # Nothing is missing for a reply that only ends.
            assert bool(wire.of("error")) == (how == "no voice" or goes_on)
            assert (done["status"], done["status_details"]["reason"]) == (
                "incomplete",
                "server_restarted",
            )
            (cut,) = done["output"]
            (part,) = (await wire.retrieve(cut["id"]))["content"]
            assert part["transcript"].startswith("One") and part["transcript"] != text
            await wire.ask("Go on", output_modalities=["text"])
            assert (await wire.done())["status"] == "completed"
        assert prompt(second.engine) == ["Hi", part["transcript"], "Go on"]
        gate.open()


@pytest.mark.parametrize(("ends", "told"), [("killed", True), ("killed", False), ("drained", True)])
async def test_a_turn_that_was_heard_and_not_answered_is_answered(
    tmp_path: Path, ends: str, told: bool
) -> None:
    gate = Gate(shut=False)
    gate.shut(after=2)
    engine = ScriptedEngine(["One two three four five six."], gate=gate)
    first = Ear("Hello", journal=SqliteJournal(tmp_path), engine=engine)
    second = Ear(journal=SqliteJournal(tmp_path), engine=ScriptedEngine(["Yes."]))
    turns = {"type": "server_vad", "interrupt_response": False}
    async with second.stand.running():
        async with first.stand.running():
            client = Client(first.stand)
            wire = await begun(client)
            transcription = {"model": "any"} if told else None
            await configure(wire, turn_detection=turns, transcription=transcription)
            await wire.ask("Hi")
            await wire.until("response.output_text.delta")
            await speak(wire, voice(1.0), silence(1.0))
            if told:
                await wire.until("conversation.item.input_audio_transcription.completed")
            (connection,) = first.stand.server.sessions.connections
            entries = connection.session.conversation.entries
            await wait_for(lambda: any(entry.text == "Hello" for entry in entries))
            if ends == "killed":
                await first.stand.server.sessions.resumables[client.token].keep()
                wire.socket.transport.abort()
            else:
                async with anyio.create_task_group() as group:
                    group.start_soon(first.stand.server.drain, 3.0)
                    await anyio.wait_all_tasks_blocked()
                    gate.open()
                    await wire.done()
        async with resumed(client, second.stand) as wire:
            if ends == "killed":
                assert (await wire.done())["status"] == "incomplete"
            assert (await wire.done())["status"] == "completed"
        assert prompt(second.engine)[-1] == "Hello" and len(second.engine.requests) == 1
        gate.open()


async def test_what_is_owed_outlives_a_second_restart(tmp_path: Path) -> None:
    gates = [Gate(shut=False) for _ in range(2)]
    ears = []
    for after, gate in enumerate(gates, 2):  # the second sends more of the same reply
        gate.shut(after=after)
        engine = ScriptedEngine(["One two three four five six.", "Yes."], gate=gate)
        ears.append(Ear("Hello", journal=SqliteJournal(tmp_path), engine=engine))
    ears.append(Ear(journal=SqliteJournal(tmp_path), engine=ScriptedEngine(["Yes."] * 2)))
    for ear in ears:
        ear.engine.capabilities = replace(ear.engine.capabilities, reproducible=True)
    first, second, third = ears
    turns = {"type": "server_vad", "interrupt_response": False}
    async with first.stand.running(), second.stand.running(), third.stand.running():
        client = Client(first.stand)
        wire = await begun(client)
        await configure(wire, turn_detection=turns, transcription={"model": "any"})
        await wire.ask("Hi")
        await wire.until("response.output_text.delta")
        await speak(wire, voice(1.0), silence(1.0))
        await wire.until("conversation.item.input_audio_transcription.completed")
        wire.socket.transport.abort()
        async with resumed(client, second.stand) as wire:
            await wire.until("response.output_text.delta")
            wire.socket.transport.abort()
        async with resumed(client, third.stand) as wire:
            for _ in range(2):  # of the reply that was under way, and the answer
                await wire.done()
        assert prompt(third.engine)[-1] == "Hello"
        for gate in gates:
            gate.open()


async def test_a_turn_and_a_response_that_waited_get_one_answer(tmp_path: Path) -> None:
    first = Ear("Hello one", "And two", journal=SqliteJournal(tmp_path))
    first.recognizer.takes_s = 0.3
    second = Ear(journal=SqliteJournal(tmp_path), engine=ScriptedEngine(["Yes."] * 2))
    turns = {"type": "server_vad"}
    async with first.stand.running(), second.stand.running():
        client = Client(first.stand)
        wire = await begun(client)
        await configure(wire, turn_detection=turns, transcription={"model": "any"})
        await speak(wire, voice(1.0), silence(0.6), voice(1.0))
        await wire.until("conversation.item.input_audio_transcription.completed")
        first.recognizer.takes_s = 1e6
        await speak(wire, voice(0.2), silence(0.8))
        await wire.until("conversation.item.done")
        await wire.send("response.create")
        await wire.configure()
        wire.socket.transport.abort()
        async with resumed(client, second.stand) as wire:
            await wire.done()
            await wire.configure()
            await anyio.wait_all_tasks_blocked()
        assert len(second.engine.requests) == 1 and prompt(second.engine) == ["Hello one"]


async def test_a_response_that_waits_for_a_transcript_outlives_another_one(tmp_path: Path) -> None:
    first = Ear(journal=SqliteJournal(tmp_path))
    first.recognizer.takes_s = 1e6
    second = Ear(journal=SqliteJournal(tmp_path), engine=ScriptedEngine(["Yes."]))
    async with first.stand.running(), second.stand.running():
        client = Client(first.stand)
        wire = await begun(client)
        await speak_by_hand(wire)
        await wire.until("conversation.item.done")
        await wire.send("response.create")
        await wire.send("response.create", response=ASIDE)
        await wire.done()
        wire.socket.transport.abort()
        async with resumed(client, second.stand) as wire:
            done = await wire.done()
            assert done["conversation_id"] is not None


async def test_a_response_that_was_refused_is_not_begun_later(tmp_path: Path) -> None:
    gate = Gate(shut=False)
    gate.shut(after=2)
    engine = ScriptedEngine(["One two three four five six."], gate=gate)
    first = Ear("Hello", journal=SqliteJournal(tmp_path), engine=engine)
    first.recognizer.takes_s = 0.1
    second = Ear(journal=SqliteJournal(tmp_path))
    async with first.stand.running(), second.stand.running():
        client = Client(first.stand)
        wire = await begun(client)
        await configure(wire, turn_detection=None)
        await wire.ask("Hi")
        await wire.until("response.output_text.delta")
        await speak(wire, voice(1.0))
        await wire.send("input_audio_buffer.commit")
        await wire.send("response.create")  # waits, and then another one is in its way
        refused = await wire.until("error")
        assert refused["error"]["code"] == "conversation_already_has_active_response"
        gate.open()
        await wire.done()
        await wire.configure()
        wire.socket.transport.abort()
        async with resumed(client, second.stand) as wire:
            await wire.configure()
            await anyio.wait_all_tasks_blocked()
        assert not second.engine.requests


async def test_a_client_that_leaves_a_server_that_stops_leaves_nothing_in_the_journal(
    tmp_path: Path,
) -> None:
    def kept() -> bool:
        return any(tmp_path.glob("*.session"))

    gate = Gate(shut=False)
    gate.shut(after=2)
    first = served(SqliteJournal(tmp_path), "One two three.", gate=gate)
    async with first.running():
        client = Client(first)
        socket = await client.begin()
        await ask(socket, output_modalities=["text"])
        await client.read(socket, 8)
        assert kept()
        async with anyio.create_task_group() as group:
            group.start_soon(first.server.drain, 60.0)
            await anyio.wait_all_tasks_blocked()
            await socket.close(1000)
            await wait_for(lambda: not kept())
            group.cancel_scope.cancel()
        gate.open()


async def test_audio_that_was_not_committed_is_told_to_be_gone(tmp_path: Path) -> None:
    first, second = (Ear(journal=SqliteJournal(tmp_path)) for _ in range(2))
    async with first.stand.running(), second.stand.running():
        client = Client(first.stand)
        wire = await begun(client)
        await speak_by_hand(wire)
        await speak(wire, voice(1.0))
        await wire.until("conversation.item.done")
        await wire.configure()
        wire.socket.transport.abort()
        async with resumed(client, second.stand) as wire:
            await wire.until("input_audio_buffer.cleared")
        await second.stand.server.sessions.resumables[client.token].keep()


@pytest.mark.parametrize("turns", [None, {"type": "server_vad", "create_response": False}])
async def test_words_that_nobody_asked_to_see_are_kept(
    tmp_path: Path, turns: dict[str, Any] | None
) -> None:
    """Without transcription, what was heard between two responses is in the next server's prompt."""
    first = Ear("Hello", journal=SqliteJournal(tmp_path))
    second = Ear(journal=SqliteJournal(tmp_path), engine=ScriptedEngine(["Yes."]))
    async with first.stand.running(), second.stand.running():
        client = Client(first.stand)
        wire = await begun(client)
        await configure(wire, turn_detection=turns, transcription=None)
        if turns is None:
            await wire.send("input_audio_buffer.append", audio="")  # no audio, so nothing to clear
        await speak(wire, voice(1.0), *([silence(1.0)] if turns else []))
        if turns is None:
            await wire.send("input_audio_buffer.commit")
        (connection,) = first.stand.server.sessions.connections
        entries = connection.session.conversation.entries
        await wait_for(lambda: any(entry.text == "Hello" for entry in entries))
        await wire.until("conversation.item.done")
        await first.stand.server.sessions.resumables[client.token].keep()
        seen = len(wire.seen)
        wire.socket.transport.abort()
        async with resumed(client, second.stand) as wire:
            await wire.send("response.create")
            await wire.done()
        assert prompt(second.engine) == ["Hello"]
        told = {event["type"] for event in wire.seen[seen:]}
        assert not any(type.startswith(("input_audio", "conversation.item.input")) for type in told)
