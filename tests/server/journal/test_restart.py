"""Sessions that outlive the process: another server takes them from the journal and goes on."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from specstream.client.client import RealtimeClient
from specstream.errors import ConnectionFailed, JournalFailed
from specstream.server.journal.base import Change, Drop, Frame, SavedSession, SessionLog
from specstream.server.journal.sqlite import SqliteJournal
from specstream.server.sessions.responses import SessionResponses
from specstream.stages.interfaces import VoiceCapabilities
from specstream.testing import ScriptedEngine
from specstream.testing.engine import chunks_of
from specstream.types import ToolCall
from specstream_adapters.avatar import VisemeScripter
from tests.server.doubles import (
    ALL_OWN,
    FreeClock,
    Gate,
    HandClock,
    Stand,
    Wire,
    WordVoice,
    end_of,
    read,
    text_of,
    wait_for,
)
from tests.server.sessions.test_microphone import Ear, configure, silence, speak, voice
from tests.server.sessions.test_resume import Client, ask, plain


def served(journal: SqliteJournal, *replies: str, reproducible: bool = True, **options: Any) -> Stand:
    scripted = {"gate": options.pop("gate")} if "gate" in options else {}
    engine = ScriptedEngine(list(replies), **scripted)
    engine.capabilities = replace(engine.capabilities, reproducible=reproducible)
    return Stand(engine, clock=FreeClock(), journal=journal, **options)


class Dying(SqliteJournal):
    """Writes so much of a session, and then no more: as a process that was killed at any moment."""

    steps = 0
    full = False

    async def begin(self, token: str, owner: str) -> SessionLog:
        self.dead = anyio.Event()
        return DyingLog(await super().begin(token, owner), self.steps, self.dead, full=self.full)


class DyingLog:
    def __init__(self, log: SessionLog, steps: int, dead: anyio.Event, *, full: bool) -> None:
        self.log, self.left, self.dead, self.full = log, steps, dead, full

    async def commit(self, changes: Sequence[Change]) -> None:
        for step in steps_of(changes):
            self.left -= 1
            if self.left == -1 and not self.full:
                self.dead.set()
                await anyio.sleep_forever()
            if self.left < 0:
                raise JournalFailed("the disk is full")
            await self.log.commit(step)

    async def aclose(self, *, remove: bool) -> None:
        await self.log.aclose(remove=remove and self.left > 0)


TOGETHER = {  # events that are sent without a wait between them
    ("conversation.item.added", "conversation.item.done"),
    ("response.output_item.added", "conversation.item.added"),
    ("conversation.item.added", "response.content_part.added"),
    ("response.output_item.done", "conversation.item.done"),
}


def steps_of(changes: Sequence[Change]) -> list[list[Change]]:
    """The least parts of changes that a session ever writes: what is noted without a wait between."""
    steps: list[list[Change]] = [[]]
    before = ""
    for change in changes:
        begins = change == Drop("deferred")  # a response
        if isinstance(change, Frame):
            type = json.loads(change.text)["type"]
            begins, before = (before, type) not in TOGETHER, type
        if begins and steps[-1]:
            steps.append([])
        steps[-1].append(change)
    return steps


@asynccontextmanager
async def two(
    folder: Path, *replies: str, **options: Any
) -> AsyncGenerator[tuple[Stand, Dying, Stand], None]:
    """A server that dies, and one that goes on with what it has begun."""
    dying = Dying(folder)
    first = served(dying, *replies, max_sessions=1000, **options)
    second = served(SqliteJournal(folder), *replies, **options)
    async with first.running(), second.running():
        yield first, dying, second


def words(events: list[dict[str, Any]]) -> str:
    kinds = ("response.output_text.delta", "response.output_audio_transcript.delta")
    return "".join(event["delta"] for event in events if event["type"] in kinds)


def sounds(events: list[dict[str, Any]]) -> list[tuple[str, list[int]]]:
    """The words of the audio, whose samples go on without a gap; one that was cut is spoken again."""
    deltas = [e["specstream"] for e in events if e["type"] == "response.output_audio.delta"]
    ends = [0, *(delta["samples"][1] for delta in deltas)]
    assert [delta["samples"][0] for delta in deltas] == ends[:-1]
    return [(word["text"], word["chars"]) for delta in deltas for word in delta.get("words", ())]


def last(events: list[dict[str, Any]], type: str) -> dict[str, Any]:
    return [event for event in events if event["type"] == type][-1]


async def killed(
    first: Stand, dying: Dying, second: Stand, after: int, **response: Any
) -> Client | None:
    """A question to a server that dies after so many steps, the rest of the answer by another one.

    None: the first one had nothing left to do.
    """
    dying.steps = after
    client = Client(first)
    socket = await client.begin()
    await ask(socket, **response)
    async with anyio.create_task_group() as group:

        async def die() -> None:
            await dying.dead.wait()
            group.cancel_scope.cancel()

        group.start_soon(die)
        await client.read(socket, 10_000)
        group.cancel_scope.cancel()
    if not dying.dead.is_set():
        await socket.close()
        return None
    socket.transport.abort()
    client.stand = second
    async with await client.again() as socket:
        assert client.resumed["type"] == "specstream.resumed", client.resumed
        await ask(socket, skip=client.resumed["received"], **response)
        await client.read(socket, 10_000)
    return client


TEXT = "One two three [smile] four five. Six seven eight, nine ten."


@pytest.mark.parametrize(("modality", "step"), [("text", 1), ("audio", 3)])
async def test_wherever_the_process_dies_a_reproducible_reply_goes_on(
    tmp_path: Path, modality: str, step: int
) -> None:
    """Killed at each step: numbers without a gap, the very words, each closing event once."""
    async with two(tmp_path, TEXT, idle_s=1e6) as (first, dying, second):
        client = Client(second)
        async with await client.begin() as socket:
            await ask(socket, output_modalities=[modality])
            await client.read(socket, 10_000)
        whole, kills = client.events, 0
        for after in range(2, 10_000, step):
            found = await killed(first, dying, second, after, output_modalities=[modality])
            if found is None:
                break
            kills += 1
            events, place = found.events, f"killed after {after} steps"
            assert [e["specstream"]["seq"] for e in events] == list(range(len(events))), place
            assert words(events) == words(whole), place
            assert events[-1]["response"]["status"] == "completed", f"{place}: {events[-1]['response']}"
            closing = [event["type"] for event in events if event["type"].endswith(".done")]
            assert closing == [e["type"] for e in whole if e["type"].endswith(".done")], place
            if modality == "text":
                assert plain(events) == plain(whole), place
            else:
                assert sounds(events) == sounds(whole), place
        assert kills >= 20


class EnglishVoice(WordVoice):
    """Is given "five dollars and fifty cents" for "$5.50"."""

    @property
    def capabilities(self) -> VoiceCapabilities:
        return replace(super().capabilities, language="en-us")


async def test_wherever_the_process_dies_a_number_is_spoken_to_its_end(tmp_path: Path) -> None:
    text = "It is $5.50 now."
    async with two(tmp_path, text, idle_s=1e6, voice=EnglishVoice) as (first, dying, second):
        client = Client(second)
        async with await client.begin() as socket:
            await ask(socket)
            await client.read(socket, 10_000)
        whole, kills = [word for word, _ in sounds(client.events)], 0
        assert whole[:4] == ["It", "is", "five", "dollars"]
        assert len(whole) == 8
        for after in range(2, 10_000, 2):
            found = await killed(first, dying, second, after)
            if found is None:
                break
            said = [word for word, _ in sounds(found.events)]
            again = len(said) - len(whole)  # words of the number that are spoken once more
            assert 0 <= again < 5
            assert said[-6:] == whole[-6:], f"killed after {after} steps"
            kills += again > 0
        assert kills >= 3, "it died inside the number"


async def test_wherever_the_process_dies_a_smile_ends_with_the_speech(tmp_path: Path) -> None:
    text = "One [smile] two three four five."
    async with two(tmp_path, text, idle_s=1e6, avatar=VisemeScripter) as (first, dying, second):
        kills = 0
        for after in range(8, 10_000, 3):
            found = await killed(first, dying, second, after, session=ALL_OWN)
            if found is None:
                break
            cues = [e["cue"] for e in found.events if e["type"] == "specstream.avatar.delta"]
            shown = [(cue["name"], cue["samples"]) for cue in cues if cue["kind"] == "emotion"]
            end = last(found.events, "response.output_audio.delta")["specstream"]["samples"][1]
            assert shown[-1] == ("neutral", [end, end]), f"killed after {after} steps: {shown}"
            kills += 1
        assert kills >= 10


@asynccontextmanager
async def resumed(client: Client, second: Stand) -> AsyncGenerator[Wire, None]:
    """The client of a server that is gone, at another one; what it sees is in ``client.events``, too."""
    client.stand = second
    async with await client.again() as socket:
        assert client.resumed["type"] == "specstream.resumed", client.resumed
        wire = Wire(socket)
        wire.seen = client.events
        yield wire


async def leave(client: Client, socket: ClientConnection, until: int) -> None:
    """See so many events of a server, and hear no more of it."""
    await client.read(socket, until)
    socket.transport.abort()


def item(text: str, id: str) -> str:
    content = [{"type": "input_text", "text": text}]
    made = {"id": id, "type": "message", "role": "user", "content": content}
    return json.dumps({"type": "conversation.item.create", "item": made})


@pytest.mark.parametrize("modality", ["text", "audio"])
async def test_another_reply_ends_as_incomplete_and_the_history_with_what_was_sent(
    tmp_path: Path, modality: str
) -> None:
    """The model doesn't write the same again: what the client has is what was said."""
    text = "One two three. Four five six."
    gate = Gate(shut=False)
    gate.shut(after=5)
    first = served(SqliteJournal(tmp_path), text, reproducible=False, gate=gate)
    second = served(SqliteJournal(tmp_path), "Again.", reproducible=False)
    async with first.running(), second.running():
        client = Client(first)
        socket = await client.begin()
        await ask(socket, output_modalities=[modality])
        with anyio.move_on_after(0.3):
            await client.read(socket, 10_000)
        socket.transport.abort()
        sent = words(client.events)
        assert "One two three" in sent and sent != text
        async with resumed(client, second) as wire:
            done = await wire.done()
            assert done["status"] == "incomplete"
            assert done["status_details"]["reason"] == "server_restarted"
            (cut,) = done["output"]
            assert cut["status"] == "incomplete"
            (part,) = (await wire.retrieve(cut["id"]))["content"]
            kept = part["text"] if modality == "text" else part["transcript"]
            spoken_words = [word for word, _ in sounds(client.events)]
            assert kept == (sent if modality == "text" else "One two three.")
            assert modality == "text" or spoken_words == ["One", "two", "three"]
            assert (await wire.reply("Go on"))["status"] == "completed"
        assert second.engine.requests[-1][0][-2]["content"] == kept
        gate.open()


async def test_settings_items_and_their_order_are_as_they_were(tmp_path: Path) -> None:
    async with two(tmp_path, "Yes.") as (first, dying, second):
        dying.steps = 10_000
        client = Client(first)
        socket = await client.begin()
        session = {
            "type": "realtime",
            "instructions": "Be short.",
            "output_modalities": ["text"],
            "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
            "audio": {"output": {"format": {"type": "audio/pcmu"}}},
            "specstream": {"sampling": {"temperature": 0.5}, "events": ["report"]},
        }
        await socket.send(json.dumps({"type": "session.update", "session": session}))
        for number in (1, 2, 22, 3):  # the beginning of one id is another
            await socket.send(item(f"text {number}", f"item_{number}"))
        await socket.send(json.dumps({"type": "conversation.item.delete", "item_id": "item_2"}))
        await leave(client, socket, 11)
        async with resumed(client, second) as wire:
            updated = (await wire.configure())["session"]
            before = last(client.events[:11], "session.updated")["session"]
            assert updated == before and updated["instructions"] == "Be short."
            assert (await wire.reply("text 4"))["status"] == "completed"
        texts = [message["content"] for message in second.engine.requests[-1][0]]
        assert texts == ["Be short.", "text 1", "text 22", "text 3", "text 4"]


@pytest.mark.parametrize("steps", [4, 5])  # before the client was told of it, and after
async def test_a_reply_of_which_nothing_was_said_begins_anew_and_once(
    tmp_path: Path, steps: int
) -> None:
    third = served(SqliteJournal(tmp_path), "Not again.", reproducible=False)
    async with two(tmp_path, "Said.", reproducible=False) as (first, dying, second):
        dying.steps = steps
        client = Client(first)
        socket = await client.begin()
        await ask(socket, output_modalities=["text"])
        await dying.dead.wait()
        socket.transport.abort()
        async with resumed(client, second) as wire:
            assert (await wire.done())["status"] == "completed"
            wire.socket.transport.abort()
        assert words(client.events) == "Said."
        async with third.running(), resumed(client, third) as wire:
            await wire.configure()
            assert [e["type"] for e in wire.seen].count("response.created") == 1
        assert not third.engine.requests


async def test_a_function_call_that_was_cut_is_told(tmp_path: Path) -> None:
    gate = Gate(shut=False)
    gate.shut(after=4)
    call = ToolCall("call_1", "look", '{"place": "a long way from here"}')
    scripts = []
    for use in (gate, Gate(shut=False)):
        engine = ScriptedEngine([chunks_of("So.", calls=[call])], gate=use, calls_tools=True)
        engine.capabilities = replace(engine.capabilities, reproducible=True)
        scripts.append(Stand(engine, clock=FreeClock(), voice=None, journal=SqliteJournal(tmp_path)))
    first, second = scripts
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    async with first.running(), second.running():
        client = Client(first)
        socket = await client.begin()
        await ask(socket, tools=[tool])
        while client.events[-1]["type"] != "response.function_call_arguments.delta":
            await client.read(socket, len(client.events) + 1)
        socket.transport.abort()
        async with resumed(client, second) as wire:
            done = await wire.done()
        assert done["status"] == "incomplete"
        arguments = last(client.events, "response.function_call_arguments.done")
        assert arguments["specstream"]["problem"] == "cut_off"
        assert [made["status"] for made in done["output"]] == ["incomplete", "incomplete"]
        gate.open()


async def test_what_was_said_and_not_understood_is_told(tmp_path: Path) -> None:
    first = Ear(journal=SqliteJournal(tmp_path))
    first.recognizer.takes_s = 1e6
    second = Ear("Hello there", journal=SqliteJournal(tmp_path))
    async with first.stand.running(), second.stand.running():
        client = Client(first.stand)
        socket = await client.begin()
        wire = Wire(socket)
        wire.seen = client.events
        await configure(wire, turn_detection=None, transcription={"model": "any"})
        await speak(wire, voice(1.0))
        await wire.send("input_audio_buffer.commit")
        await wire.until("conversation.item.done")
        socket.transport.abort()
        async with resumed(client, second.stand) as wire:
            failed = await wire.until("conversation.item.input_audio_transcription.failed")
            assert failed["error"]["code"] == "server_restarted"
            await speak(wire, voice(1.0))
            await wire.send("input_audio_buffer.commit")
            heard = await wire.until("conversation.item.input_audio_transcription.completed")
            assert heard["transcript"] == "Hello there"


async def test_an_answer_that_had_hardly_begun_stays_forgotten(tmp_path: Path) -> None:
    """It was sent as a whole, so no event tells that the user spoke on."""
    clock, engine = HandClock(), ScriptedEngine(["Of course I can tell.", "Once."])
    talk = {"engine": engine, "voice": WordVoice, "clock": clock}
    first = Ear("Can you tell me.", "About a dragon.", journal=SqliteJournal(tmp_path), **talk)
    second = served(SqliteJournal(tmp_path), "Yes.")
    async with second.running():
        async with first.stand.running():
            client = Client(first.stand)
            socket = await client.begin()
            wire = Wire(socket)
            wire.seen = client.events
            await speak(wire, voice(1.0), silence(0.6))
            await wire.done()
            clock.advance(0.3)
            await speak(wire, voice(1.0), silence(0.6))
            await wire.done()
            socket.transport.abort()
        async with resumed(client, second) as wire:
            await wire.reply("Go on.")
    asked = [message["content"] for message in second.engine.requests[-1][0]]
    assert asked == ["Can you tell me. About a dragon.", "Once.", "Go on."]


async def test_a_server_that_stops_leaves_its_sessions_to_the_next_one(tmp_path: Path) -> None:
    first, second = (served(SqliteJournal(tmp_path), "One.", "Two.") for _ in range(2))
    async with second.running():
        client = Client(first)
        async with first.running():
            socket = await client.begin()
            await ask(socket, output_modalities=["text"])
            await client.read(socket, 10_000)
            await first.server.drain(1.0)
            with pytest.raises(ConnectionClosed, match="1001"):
                await socket.recv()
        async with resumed(client, second) as wire:
            assert (await wire.reply("More", output_modalities=["text"]))["status"] == "completed"
        assert len(second.engine.requests[-1][0]) == 3


async def test_a_session_that_is_being_left_can_be_resumed_a_moment_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, close = anyio.Event(), SessionResponses.aclose

    async def slowly(self: SessionResponses) -> None:
        await left.wait()
        await close(self)

    monkeypatch.setattr(SessionResponses, "aclose", slowly)
    first, second = (served(SqliteJournal(tmp_path), "One.") for _ in range(2))
    async with first.running(), second.running(), anyio.create_task_group() as group:
        client = Client(first)
        socket = await client.begin()
        group.start_soon(first.server.drain, 1.0)
        with pytest.raises(ConnectionClosed, match="1001"):
            await socket.recv()
        with pytest.raises(ConnectionClosed, match="1013"):
            await client.again()
        left.set()
        await wait_for(lambda: not first.server.counters.sessions)
        async with resumed(client, second):
            pass


async def test_a_session_that_cannot_be_written_ends_with_an_error_and_can_be_resumed(
    tmp_path: Path,
) -> None:
    async with two(tmp_path, TEXT) as (first, dying, second):
        dying.steps, dying.full = 12, True
        client = Client(first)
        socket = await client.begin()
        await ask(socket, output_modalities=["text"])
        with pytest.raises(KeyError):  # an event without a number
            await client.read(socket, 10_000)
        with pytest.raises(ConnectionClosed, match="journal_failed"):
            await socket.recv()
        async with resumed(client, second) as wire:
            assert (await wire.done())["status"] == "completed"
        assert words(client.events) == TEXT


class Unreadable(Dying):
    """Sessions can be taken at the third try only."""

    tries = 0

    async def take(self, token: str, owner: str) -> tuple[SessionLog, SavedSession] | None:
        self.tries += 1
        if self.tries < 3:
            raise JournalFailed("a session can't be read in the journal: no memory")
        return await super().take(token, owner)


async def test_a_disk_that_has_room_again_is_nothing_that_a_client_sees(tmp_path: Path) -> None:
    journal = Unreadable(tmp_path)
    journal.steps, journal.full = 12, True
    stand = served(journal, TEXT)
    async with stand.running():
        async with RealtimeClient.connect(stand.url) as client:
            events = await read(client.respond("Hi", audio=False))
        assert text_of(events) == TEXT and end_of(events).status == "completed"
    assert journal.tries == 3 and stand.server.counters.sessions_total == 2


async def test_a_session_that_cannot_be_read_is_told_with_the_reason(tmp_path: Path) -> None:
    journal = Unreadable(tmp_path)
    first, second = served(SqliteJournal(tmp_path), TEXT), served(journal, TEXT)
    async with first.running(), second.running():
        client = Client(first)
        await leave(client, await client.begin(), 1)
        client.stand = second
        url = f"{second.url}?resume={client.token}&seq={client.seen}"
        async with connect(url, proxy=None) as socket:
            error = json.loads(await socket.recv())["error"]
            assert error["code"] == "journal_failed" and "no memory" in error["message"]
            with pytest.raises(ConnectionClosed, match="1011"):
                await socket.recv()
        journal.tries = -10_000
        with pytest.raises(ConnectionFailed, match="no memory"):
            async with RealtimeClient.connect(url):
                pass


async def returned(client: Client) -> ClientConnection:
    """Come back to a server where the session ends first, before it is taken from the journal."""
    while True:
        try:
            return await client.again()
        except ConnectionClosed as closed:
            if closed.rcvd is None or closed.rcvd.code != 1013:
                raise


@pytest.mark.parametrize("ended", [False, True])
async def test_a_session_comes_back_to_the_server_that_it_has_left(tmp_path: Path, ended: bool) -> None:
    stands = [served(SqliteJournal(tmp_path), "One.", "Two.", "Three.") for _ in range(2)]
    async with stands[0].running(), stands[1].running():
        client = Client(stands[0])
        await leave(client, await client.begin(), 1)
        async with resumed(client, stands[1]) as wire:
            await wire.reply("Hi", output_modalities=["text"])
            if not ended:
                wire.socket.transport.abort()
        client.stand = stands[0]
        async with await returned(client) as socket:
            if ended:
                assert client.resumed["error"]["code"] == "resume_expired"
                return
            assert client.resumed["type"] == "specstream.resumed"
            wire = Wire(socket)
            assert (await wire.reply("And?", output_modalities=["text"]))["status"] == "completed"
        assert [m["content"] for m in stands[0].engine.requests[-1][0]] == ["Hi", "One.", "And?"]


async def test_without_a_place_a_client_comes_again_later(tmp_path: Path) -> None:
    first = served(SqliteJournal(tmp_path), "One.")
    second = served(SqliteJournal(tmp_path), "One.", max_sessions=1)
    async with first.running(), second.running():
        client = Client(first)
        await leave(client, await client.begin(), 1)
        async with connect(second.url, proxy=None):
            client.stand = second
            with pytest.raises(ConnectionClosed, match="1013"):
                await client.again()
        await wait_for(lambda: not second.server.counters.sessions)
        async with resumed(client, second):
            pass
