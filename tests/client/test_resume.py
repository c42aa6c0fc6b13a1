"""The package's client comes back by itself: nothing is lost, nothing comes twice."""

import json
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import Mock

import anyio
import pytest
from websockets.exceptions import ConnectionClosedError

from specstream.client import resume
from specstream.client.client import AudioDelta, RealtimeClient, TextDelta
from specstream.client.dial import dial
from specstream.errors import ConnectionFailed
from specstream.testing import ScriptedEngine
from tests.server.doubles import Gate, Stand, end_of, read, text_of, wait_for

WORDS = " ".join(f"word{number}" for number in range(60)) + "."


class Line:
    """The connections that clients make; ``before`` is awaited before each but the first."""

    def __init__(self) -> None:
        self.sockets: list[Any] = []
        self.before: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint

    async def dial(self, url: str, **options: Any) -> Any:
        if self.sockets:
            await self.before()
        made = await dial(url, **options)
        self.sockets.append(made[0])
        return made

    def cut(self) -> None:
        self.sockets[-1].transport.abort()


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    made = Line()
    monkeypatch.setattr(resume, "dial", made.dial)
    return made


async def test_a_reply_goes_on_over_connections_that_break(line: Line) -> None:
    stand = Stand(ScriptedEngine([WORDS, "fine."]), voice=None)
    async with stand.running(), RealtimeClient.connect(stand.url) as client:
        reply, events = client.respond("Hi", audio=False), list[Any]()
        async for event in reply:
            events.append(event)
            if len(events) % 9 == 4:
                line.cut()
        assert text_of(events) == WORDS and end_of(events).status == "completed"
        line.cut()
        again = await read(client.respond("And?", audio=False))
        assert text_of(again) == "fine."
    assert stand.server.counters.sessions_total == 1
    assert [m["content"] for m in stand.engine.requests[1][0]] == ["Hi", WORDS, "And?"]


async def test_leaving_in_mid_reply_ends_the_session_at_once() -> None:
    """Sending meets the closed socket before reading does, and only reading is told why it closed."""
    stand = Stand(ScriptedEngine([WORDS]), resume_s=600)
    async with stand.running():
        for _ in range(8):
            async with RealtimeClient.connect(stand.url) as client:
                async for event in client.respond("Hi"):
                    if isinstance(event, AudioDelta):
                        break
        await wait_for(lambda: stand.server.counters.sessions == 0)
    assert stand.server.counters.sessions_total == 8


async def test_what_was_sent_into_a_broken_connection_is_sent_again(line: Line) -> None:
    stand = Stand(ScriptedEngine(["one.", "two."]), voice=None)
    async with stand.running(), RealtimeClient.connect(stand.url) as client:
        for number in range(6):
            broken = line.sockets[-1]
            original, sent = broken.send, 0

            async def lost(message: str, broken: Any = broken, original: Any = original) -> None:
                nonlocal sent
                sent += 1
                if sent == 2:  # the item arrives, and the request for a reply doesn't
                    broken.transport.abort()
                await original(message)

            broken.send = lost
            assert text_of(await read(client.respond(f"{number}", audio=False)))
    users = [m["content"] for m in stand.engine.requests[-1][0] if m["role"] == "user"]
    assert users == [str(number) for number in range(6)]


async def test_a_connection_that_breaks_while_it_catches_up_is_no_end(line: Line) -> None:
    stand = Stand(ScriptedEngine(["one.", "two."]), voice=None)

    async def breaks(message: str) -> None:
        line.cut()
        raise ConnectionClosedError(None, None)

    async def dial(url: str, **options: Any) -> Any:
        made = await Line.dial(line, url, **options)
        if len(line.sockets) in (2, 3):  # the first two that come back
            made[0].send = breaks
        return made

    async with stand.running(), RealtimeClient.connect(stand.url) as client:
        assert text_of(await read(client.respond("0", audio=False))) == "one."
        resume.dial = dial  # type: ignore[attr-defined]
        line.sockets[-1].send = breaks
        assert text_of(await read(client.respond("1", audio=False))) == "two."
    assert len(line.sockets) == 4
    users = [m["content"] for m in stand.engine.requests[-1][0] if m["role"] == "user"]
    assert users == ["0", "1"]


@pytest.mark.parametrize("side", ["recv", "send"])
async def test_what_is_cancelled_in_the_middle_loses_nothing(line: Line, side: str) -> None:
    stand = Stand(ScriptedEngine([WORDS, "fine."]), voice=None)
    options: dict[str, Any] = {"api_key": None, "open_timeout": 5.0, "tls": None}
    async with stand.running(), resume.resuming(stand.url, 5.0, 0.0, options) as (socket, _):
        client = RealtimeClient(socket)
        wire, stuck = line.sockets[-1], anyio.Event()
        original = wire.send

        async def held(message: str) -> None:
            if ("specstream.ack" in message) == (side == "recv"):
                stuck.set()
                await anyio.sleep_forever()
            await original(message)

        if side == "send":
            wire.send = held
            item: dict[str, Any] = {"type": "message", "role": "user"}
            item["content"] = [{"type": "input_text", "text": "Hi"}]
            async with anyio.create_task_group() as group:
                asked = {"type": "conversation.item.create", "item": item}
                group.start_soon(socket.send, json.dumps(asked))
                await stuck.wait()
                group.cancel_scope.cancel()
            wire.send = original
            assert text_of(await read(client.respond("And?", audio=False))) == WORDS
            users = [m["content"] for m in stand.engine.requests[0][0] if m["role"] == "user"]
            assert users == ["Hi", "And?"]
            return
        wire.send = held
        texts = ""
        await client.exchange.send("response.create", response={"output_modalities": ["text"]})
        async with anyio.create_task_group() as group:

            async def listen() -> None:
                nonlocal texts
                while True:
                    texts += json.loads(await socket.recv()).get("delta", "")

            group.start_soon(listen)
            await stuck.wait()
            group.cancel_scope.cancel()
        wire.send = original
        while texts != WORDS:
            texts += json.loads(await socket.recv()).get("delta", "")
            assert WORDS.startswith(texts)


async def test_a_long_time_of_frames_into_a_dead_connection_is_sent_again(line: Line) -> None:
    stand = Stand(ScriptedEngine([WORDS]), voice=None)
    async with stand.running(), RealtimeClient.connect(stand.url) as client:
        await read(client.respond("Hi", audio=False))
        wire = line.sockets[-1]

        async def swallowed(message: str) -> None:
            pass

        wire.send = swallowed
        for number in range(600):
            content = [{"type": "input_text", "text": str(number)}]
            item = {"type": "message", "role": "user", "content": content}
            await client.exchange.send("conversation.item.create", item=item)
        line.cut()
        await read(client.respond("And?", audio=False))
    told = [m["content"] for m in stand.engine.requests[-1][0] if m["role"] == "user"]
    assert told == ["Hi", *map(str, range(600)), "And?"]


async def test_a_session_that_is_gone_is_an_error(line: Line) -> None:
    gate = Gate()
    stand = Stand(ScriptedEngine([WORDS], gate=gate), voice=None, resume_s=0.01)
    async with stand.running(), RealtimeClient.connect(stand.url, resume_s=0.5) as client:
        reply = client.respond("Hi", audio=False)
        gate.open()
        first = await anext(aiter(reply))
        assert isinstance(first, TextDelta)
        held = anyio.Event()
        line.before = held.wait
        line.cut()
        async with anyio.create_task_group() as group:
            group.start_soon(_release, stand, held)
            with pytest.raises(ConnectionFailed, match="can't be resumed"):
                await read(reply)


async def _release(stand: Stand, held: anyio.Event) -> None:
    await wait_for(lambda: not stand.server.counters.sessions)
    held.set()


async def test_without_resuming_a_broken_connection_is_an_error(line: Line) -> None:
    stand = Stand(ScriptedEngine([WORDS]), voice=None)
    async with stand.running(), RealtimeClient.connect(stand.url, resume_s=0) as client:
        reply = client.respond("Hi", audio=False)
        await anext(aiter(reply))
        line.cut()
        with pytest.raises(ConnectionFailed):
            await read(reply)


async def test_a_server_that_stops_for_good_is_told_in_time(line: Line) -> None:
    stand = Stand(ScriptedEngine([WORDS]), voice=None)
    async with stand.running():
        async with RealtimeClient.connect(stand.url, resume_s=0.3) as client:
            reply = client.respond("Hi", audio=False)
            await anext(aiter(reply))
            address = stand.url.replace(str(stand.port), "1")

            async def nobody() -> None:
                raise ConnectionFailed(f"no Realtime server answers at {address}")

            line.before = nobody
            line.cut()
            with pytest.raises(ConnectionFailed, match="answers"):
                await read(reply)


async def test_a_server_that_takes_the_connection_and_says_nothing_is_told_in_time(line: Line) -> None:
    stand = Stand(ScriptedEngine([WORDS]), voice=None)
    async with stand.running(), RealtimeClient.connect(stand.url, resume_s=0.1) as client:
        reply = client.respond("Hi", audio=False)
        await anext(aiter(reply))
        line.before = anyio.sleep_forever
        line.cut()
        with pytest.raises(ConnectionFailed, match="no server answered for 0.1 s"):
            await read(reply)


async def test_a_minute_of_small_frames_can_be_sent_again() -> None:
    """A server notes once a minute what has come; a client may send 200 frames a second."""
    sent: list[str] = []

    class Cut:
        transport = Mock()

        async def send(self, message: str) -> None:
            pass

        async def recv(self) -> str:
            raise ConnectionClosedError(None, None)

    class Whole(Cut):
        async def send(self, message: str) -> None:
            sent.append(message)

        async def recv(self) -> str:
            return "{}"

    async def again(query: str) -> Any:
        return Whole(), json.dumps({"type": "specstream.resumed", "received": 0})

    cut: Any = Cut()
    socket = resume.ResumingSocket(cut, "token", again, 1.0)
    for number in range(12_000):
        await socket.send(str(number))
    await socket.recv()
    assert sent == [str(number) for number in range(12_000)]


async def test_what_came_before_the_server_closed_is_read_to_its_end() -> None:
    """An acknowledgement that can't be sent leaves no frame behind."""
    gone = ConnectionClosedError(None, None)

    class Closed:
        frames = [json.dumps({"type": "x", "specstream": {"seq": n}}) for n in range(1, 41)]

        async def recv(self) -> str:
            if not self.frames:
                raise gone
            return self.frames.pop(0)

        async def send(self, message: str) -> None:
            raise gone

    async def again(query: str) -> Any:
        raise ConnectionFailed("nobody answers")

    closed: Any = Closed()
    socket = resume.ResumingSocket(closed, "token", again, 0.0)
    read_to = [json.loads(await socket.recv())["specstream"]["seq"] for _ in range(40)]
    assert read_to == list(range(1, 41))
    with pytest.raises(ConnectionFailed, match="nobody answers"):
        await socket.recv()
