"""Clients that send too much: in bytes, in frames, in what is echoed."""

import asyncio
import json
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from specstream.realtime import protocol
from specstream.realtime.protocol import MAX_STRUCTURE, AudioAppend, parse_client_event
from specstream.realtime.settings import MAX_SETTINGS
from specstream.realtime.wire import Refused
from specstream.server.journal.sqlite import SqliteJournal
from specstream.server.limits import BURST, FRAMES_PER_S, Meter, RateLimit, cost
from specstream.server.sessions.connection import RealtimeConnection
from specstream.server.sessions.entries import MAX_CHARS
from specstream.signals import LoopClock
from specstream.testing import ScriptedEngine, chunks_of
from tests.server.doubles import Gate, HandClock, Stand, settle, wait_for

MIB = 1 << 20


def message(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


async def test_forty_megabytes_of_items_end_in_an_error_and_others_do_not_notice() -> None:
    engine = ScriptedEngine(["one two."])
    timer = HandClock()
    stand = Stand(engine, voice=None, timer=timer)
    async with stand.running(), stand.client() as hostile, stand.client() as other:
        answers = []
        for _ in range(40):
            timer.advance(10.0)
            await hostile.send("conversation.item.create", item=message("x" * (MIB - 500)))
            while (event := await hostile.next())["type"] == "conversation.item.added":
                pass
            answers.append(event.get("error", {}).get("code"))
        assert answers == [None] + ["conversation_full"] * 39
        assert "characters" in event["error"]["message"]
        await hostile.send("response.create")
        await hostile.until("response.done")
        asked = sum(len(m["content"]) for m in engine.requests[0][0])
        assert asked <= MAX_CHARS
        assert (await other.reply("Hi"))["status"] == "completed"


async def test_deleting_items_makes_room_again() -> None:
    timer = HandClock()
    async with Stand(ScriptedEngine(["one."]), voice=None, timer=timer).alone() as wire:
        for _ in range(5):
            timer.advance(10.0)
            item = {**message("x" * (MAX_CHARS - 1000)), "id": "big"}
            await wire.send("conversation.item.create", item=item)
            await wire.until("conversation.item.done")
            await wire.send("conversation.item.delete", item_id="big")
            await wire.until("conversation.item.deleted")


async def test_settings_are_bounded_and_a_refused_update_changes_nothing() -> None:
    async with Stand(ScriptedEngine(["one."]), voice=None).alone() as wire:
        error = await wire.refused(
            "session.update", session={"type": "realtime", "instructions": "é" * MAX_SETTINGS}
        )
        assert error["code"] == "settings_too_large"
        assert str(MAX_SETTINGS) in error["message"]
        most = {"instructions": "x" * (MAX_SETTINGS * 3 // 4)}
        await wire.configure(**most)
        more = {"specstream": {"chat_template_kwargs": {"a": "x" * (MAX_SETTINGS // 3)}}}
        error = await wire.refused("session.update", session={"type": "realtime", **more})
        assert error["code"] == "settings_too_large", "together they are too large"
        await wire.send("session.update", session={"type": "realtime", "tracing": "x" * (MIB - 200)})
        session = (await wire.until("session.updated"))["session"]
        assert session["instructions"] == most["instructions"]
        assert not session["specstream"]["chat_template_kwargs"]
        assert session.get("tracing") is None, "nothing that isn't served is kept or echoed"


@pytest.mark.parametrize("part", ["0,", "[],", '"",', '{"":1},', '"\\"",', '"\\\\",'])
def test_a_frame_of_nothing_but_structure_is_not_read(part: str) -> None:
    value = "[" + part * ((MIB - 200) // len(part)) + "0]"
    frame = '{"type":"session.update","session":{"type":"realtime","tracing":' + value + "}}"
    with pytest.raises(Refused, match=f"{MAX_STRUCTURE} characters outside of its strings"):
        parse_client_event(frame)


def test_a_large_text_full_of_punctuation_is_read() -> None:
    text = '[{"a\\b": 1}, "' * 50_000
    frame = json.dumps({"type": "conversation.item.create", "item": message(text)})
    assert len(frame) > MAX_STRUCTURE
    parse_client_event(frame)


@pytest.mark.parametrize("quote", ['"', '"' + '\\"' * 500_000, '"\\'])
def test_a_string_without_an_end_is_refused(quote: str) -> None:
    with pytest.raises(Refused):
        parse_client_event('{"type":' + quote)


async def test_who_sends_too_fast_waits() -> None:
    clock = HandClock()
    allowance = RateLimit(clock)
    for _ in range(BURST):
        await allowance.take(1.0)
    taken: list[float] = []

    async def more() -> None:
        for _ in range(3):
            await allowance.take(FRAMES_PER_S)
            taken.append(clock.now())

    async with anyio.create_task_group() as group:
        group.start_soon(more)
        for _ in range(3):
            await anyio.wait_all_tasks_blocked()
            clock.advance(1.0)
    assert taken == [1.0, 2.0, 3.0]
    clock.advance(1e6)
    for _ in range(BURST):
        await allowance.take(1.0)
    assert cost(4096) == 1.0


async def test_a_flood_of_small_frames_is_read_no_faster_than_is_allowed() -> None:
    timer = HandClock()
    stand = Stand(ScriptedEngine(["one two."]), voice=None, timer=timer)
    async with stand.running(), stand.client() as hostile, stand.client() as other:
        for _ in range(BURST + 2 * FRAMES_PER_S):
            await hostile.socket.send("{")

        async def read() -> None:
            while True:
                await hostile.next()

        async def answered() -> int:
            before = -1
            while before != len(hostile.seen):
                before = len(hostile.seen)
                await settle()
            return before - 1  # session.created

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            assert BURST - 2 <= await answered() <= BURST
            timer.advance(1.0)
            assert BURST + FRAMES_PER_S - 2 <= await answered() <= BURST + FRAMES_PER_S
            assert (await other.reply("Hi"))["status"] == "completed"
            timer.advance(60.0)
            assert await answered() == BURST + 2 * FRAMES_PER_S
            group.cancel_scope.cancel()


async def test_a_flooding_client_that_leaves_is_gone_two_seconds_later() -> None:
    """Its frames wait, so its socket isn't read, and the end of what it sent isn't seen there."""
    timer = HandClock()
    stand = Stand(ScriptedEngine(["one two."]), voice=None, timer=timer, max_sessions=4)
    async with stand.running():
        for _ in range(4):
            hostile = await connect(stand.url, proxy=None, max_queue=None, close_timeout=0)
            for _ in range(40 * BURST):
                await hostile.send("{")
            await settle()
            hostile.transport.abort()
        for _ in range(2):
            await settle()
            timer.advance(1.0)
        await wait_for(lambda: not stand.server.counters.sessions)
        async with stand.client() as honest:
            assert (await honest.reply("Hi"))["status"] == "completed"


async def test_sixteen_floods_let_others_pass_after_a_frame_of_each() -> None:
    """Counted in frames that were read between the arrival of another's frame and its answer."""
    timer = HandClock()
    stand = Stand(ScriptedEngine([]), voice=None, timer=timer)
    read, most, between = 0, 0, 0
    plain = protocol.parse_client_event

    def counted(frame: str, **options: Any) -> Any:
        nonlocal read, between
        read += frame == "{"
        between += frame == "{"
        return plain(frame, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(protocol, "parse_client_event", counted)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(stand.running())
            other = await stack.enter_async_context(stand.client())
            sockets = [
                await stack.enter_async_context(connect(stand.url, proxy=None, max_queue=None))
                for _ in range(16)
            ]
            for socket in sockets:
                socket.transport.set_write_buffer_limits(1 << 24)
            for socket in sockets:
                await asyncio.gather(*(socket.send("{") for _ in range(BURST)))
            while read < 15 * BURST:
                before = between
                await other.configure()
                most = max(most, between - before)
            for socket in sockets:
                socket.transport.abort()
    assert most < 16 * 40, "not after all that was sent: at most some of what one read brings"


async def test_what_a_gone_client_left_behind_is_counted() -> None:
    gate = Gate()
    stand = Stand(ScriptedEngine(["one two."], gate=gate), voice=None)
    async with stand.running():
        async with stand.client() as wire:
            await wire.ask("Hi")
            await wire.until("response.created")
            wire.socket.transport.abort()
        await wait_for(lambda: not stand.server.counters.sessions)
        gate.open()
        assert stand.server.counters.responses == {"abandoned": 1}


@pytest.mark.virtual_time
async def test_a_session_that_is_too_old_ends_after_its_reply() -> None:
    gate = Gate()
    socket = Scripted()
    stand = Stand(ScriptedEngine(["one two."], gate=gate), voice=None, longest_s=900.0)
    service = stand.server.service
    connection = RealtimeConnection(cast(Any, socket), service, None, Meter(LoopClock(), []))
    async with anyio.create_task_group() as group:
        group.start_soon(connection.serve)
        socket.say("response.create")
        await anyio.sleep(901)
        socket.say("response.create", response={"conversation": "none"})
        await anyio.sleep(1)
        assert socket.sent[-1]["error"]["code"] == "session_expired"
        assert socket.closed is None, "the reply goes on"
        gate.open()
        await anyio.sleep(1)
        group.cancel_scope.cancel()
    done = [event for event in socket.sent if event["type"] == "response.done"]
    assert [event["response"]["status"] for event in done] == ["completed"]
    assert socket.sent[-1]["error"]["code"] == "session_expired"
    assert socket.closed == (1001, "session_expired")


@pytest.mark.virtual_time
@pytest.mark.parametrize("resume", [None, {"token": "t"}])
async def test_who_acknowledges_nothing_is_sent_so_much_and_no_more(resume: Any) -> None:
    """A proxy that never makes its sender wait hides that the client doesn't read."""
    socket, words = Scripted(), " ".join(f"word{n}" for n in range(2_000))
    stand = Stand(ScriptedEngine([chunks_of(words)]), voice=None, max_output=1 << 16)
    service, meter = stand.server.service, Meter(LoopClock(), [])
    connection = RealtimeConnection(cast(Any, socket), service, None, meter, resume)
    async with anyio.create_task_group() as group:
        group.start_soon(connection.serve)
        socket.say("response.create")
        await anyio.sleep(60)
        group.cancel_scope.cancel()
    sent = sum(len(json.dumps(event)) for event in socket.sent)
    [done] = [event["response"] for event in socket.sent if event["type"] == "response.done"]
    if resume is not None:  # those who acknowledge are bounded by that
        assert sent > 1 << 18 and done["status"] == "completed" and socket.closed is None
        return
    assert 1 << 16 <= sent < (1 << 16) + 100_000, "and what the end of the response repeats"
    assert done["status"] == "cancelled"
    assert done["status_details"]["error"]["code"] == "output_limit"
    assert socket.sent[-1]["error"]["code"] == "output_limit"
    assert socket.closed == (1008, "output_limit")


def test_only_audio_may_be_long() -> None:
    audio = "A" * (15 << 20)
    event = parse_client_event(
        json.dumps({"type": "input_audio_buffer.append", "audio": audio}), hears=True
    )
    assert isinstance(event, AudioAppend) and len(event.audio) == len(audio)
    late = json.dumps({"audio": audio, "type": "input_audio_buffer.append"})
    assert isinstance(parse_client_event(late, hears=True), AudioAppend)
    with pytest.raises(Refused) as caught:
        parse_client_event(json.dumps({"type": "session.update", "x": audio}))
    assert caught.value.code == "frame_too_large"


class Scripted:
    """A socket whose frames come from a test."""

    address = ""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.closed: tuple[int, str] | None = None
        self.over = anyio.Event()
        self.frames = asyncio.Queue[str]()

    def say(self, type: str, **fields: Any) -> None:
        self.frames.put_nowait(json.dumps({"type": type, **fields}))

    async def receive(self) -> str:
        return await self.frames.get()

    async def send(self, text: str) -> None:
        self.sent.append(json.loads(text))

    async def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)
        self.over.set()

    def unread(self) -> tuple[int, int]:
        return 0, 0

    def gone(self) -> bool:
        return False


@pytest.mark.parametrize("journal", [False, True])
async def test_simultaneous_handshakes_get_no_more_places_than_there_are(
    journal: bool, tmp_path: Path
) -> None:
    kept = SqliteJournal(tmp_path) if journal else None
    stand = Stand(ScriptedEngine(["one."]), voice=None, max_sessions=2, journal=kept)
    refused = 0

    async def come() -> None:
        nonlocal refused
        with suppress(InvalidStatus, ConnectionClosed):
            async with connect(f"{stand.url}?resumable=1", proxy=None) as socket:
                await socket.recv()
                await over.wait()
                return
        refused += 1
        if refused == 10:
            over.set()

    over = anyio.Event()
    async with stand.running(), anyio.create_task_group() as group:
        for _ in range(12):
            group.start_soon(come)
        with anyio.fail_after(20):
            await over.wait()
    assert refused == 10
