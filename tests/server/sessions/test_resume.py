"""Sessions that outlive their sockets: every event once and in order, wherever the socket dies."""

import json
from contextlib import AsyncExitStack, suppress
from typing import Any

import anyio
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from specstream.client.socket import SocketClosed
from specstream.realtime.protocol import AudioCommit, ResponseCancel
from specstream.server.keys import KeyAccount
from specstream.server.sessions import resume as module
from specstream.server.sessions.boxes import Inbox
from specstream.server.sessions.resume import ResumableSocket
from specstream.signals import LoopClock
from specstream.testing import ScriptedEngine, chunks_of
from tests.server.doubles import FreeClock, Gate, Stand, settle, wait_for


def spoken(words: int) -> str:
    return " ".join(f"word{number}" for number in range(words)) + "."


WORDS = spoken(160)


class Client:
    """Sees each numbered event once, in order, whatever happens to its sockets."""

    def __init__(self, stand: Stand, *, acknowledges: bool = True) -> None:
        self.stand, self.acknowledges = stand, acknowledges
        self.events: list[dict[str, Any]] = []
        self.token = ""
        self.resumed: dict[str, Any] = {}

    @property
    def seen(self) -> int:
        return len(self.events) - 1

    async def begin(self) -> ClientConnection:
        socket = await connect(self.stand.url + "?resumable=1", proxy=None)
        created = json.loads(await socket.recv())
        self.token = created["specstream"]["resume"]["token"]
        self.events.append(created)
        return socket

    async def again(self, seen: int | None = None, token: str | None = None) -> ClientConnection:
        query = f"?resume={token or self.token}&seq={self.seen if seen is None else seen}"
        socket = await connect(self.stand.url + query, proxy=None)
        self.resumed = json.loads(await socket.recv())
        return socket

    async def read(self, socket: ClientConnection, until: int) -> None:
        """Read on until so many events were seen, or the response has ended."""
        while len(self.events) < until and self.events[-1]["type"] != "response.done":
            event = json.loads(await socket.recv())
            assert event["specstream"]["seq"] == len(self.events)
            self.events.append(event)
            if self.acknowledges and len(self.events) % 50 == 0:
                await socket.send(json.dumps({"type": "specstream.ack", "seq": self.seen}))


async def ask(
    socket: ClientConnection, *, skip: int = 0, session: dict[str, Any] | None = None, **response: Any
) -> None:
    """Send a question's two frames, behind one of settings; ``skip``: so many of them have arrived."""
    content = [{"type": "input_text", "text": "Hi"}]
    item = {"type": "message", "role": "user", "content": content}
    frames: list[Any] = [{"type": "conversation.item.create", "item": item}]
    frames.append({"type": "response.create", "response": response})
    if session is not None:
        frames.insert(0, {"type": "session.update", "session": {"type": "realtime", **session}})
    for frame in frames[skip:]:
        await socket.send(json.dumps(frame))


def plain(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    keep = ("type", "delta", "transcript", "text")
    return [(*(event.get(name) for name in keep), event["specstream"]["seq"]) for event in events]


def stand(text: str = WORDS) -> Stand:
    return Stand(ScriptedEngine([chunks_of(text)]), clock=FreeClock())


LONG = (pytest.mark.nightly, pytest.mark.timeout(1800))


@pytest.mark.parametrize(
    ("modality", "words", "step"),
    [
        ("text", 60, 5),
        ("audio", 30, 11),
        pytest.param("text", 490, 31, marks=pytest.mark.slow),
        pytest.param("text", 490, 1, marks=LONG),
        pytest.param("audio", 60, 2, marks=LONG),
    ],
)
async def test_wherever_the_socket_dies_every_event_comes_once(
    modality: str, words: int, step: int
) -> None:
    """At each number of events that the client has seen: the views are the same."""
    whole: list[dict[str, Any]] = []
    async with stand(spoken(words)).running() as plainly:
        client = Client(plainly)
        async with await client.begin() as socket:
            await ask(socket, output_modalities=[modality])
            await client.read(socket, 10_000)
        whole = client.events
    assert len(whole) > words
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(stand(spoken(words)).running())
        for cut in range(1, len(whole), step):
            client = Client(served)
            socket = await client.begin()
            await ask(socket, output_modalities=[modality])
            await client.read(socket, cut)
            socket.transport.abort()
            async with await client.again() as socket:
                assert client.resumed["type"] == "specstream.resumed"
                assert client.resumed["received"] == 2
                await client.read(socket, 10_000)
            assert plain(client.events) == plain(whole), f"cut after {cut} events"


async def test_the_reply_goes_on_while_nobody_is_there() -> None:
    served = stand()
    async with served.running():
        client = Client(served)
        socket = await client.begin()
        await ask(socket, output_modalities=["text"])
        await client.read(socket, 5)
        socket.transport.abort()
        await wait_for(lambda: served.server.counters.responses["completed"] == 1)
        assert served.server.counters.sessions == 1
        async with await client.again() as socket:
            await client.read(socket, 10_000)
        assert client.events[-1]["response"]["status"] == "completed"
        await wait_for(lambda: not served.server.counters.sessions)


async def test_what_is_acknowledged_is_forgotten_and_what_is_not_holds_the_session_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_UNACKED", 20_000)
    served = stand()
    async with served.running():
        client = Client(served, acknowledges=False)
        async with await client.begin() as socket:
            await ask(socket, output_modalities=["text"])
            with anyio.move_on_after(0.3):
                await client.read(socket, 10_000)
            stopped = len(client.events)
            assert 10 < stopped < 100, "nobody acknowledges"
            while client.events[-1]["type"] != "response.done":
                await socket.send(json.dumps({"type": "specstream.ack", "seq": client.seen}))
                await client.read(socket, len(client.events) + 20)
        async with await client.again(seen=3) as socket:
            assert client.resumed["error"]["code"] == "resume_expired", "more was acknowledged"
            assert "specstream" not in client.resumed, "it has no number"
            with pytest.raises(ConnectionClosed):
                await socket.recv()


async def test_only_an_acknowledgement_is_one() -> None:
    async with stand().running() as served:
        client = Client(served)
        async with await client.begin() as socket:
            for frame in ('{"type": "specstream.ack"}', '{"type": "specstream.ack", "seq": "x"}'):
                await socket.send(frame)
            odd = {"event_id": "specstream.ack", "type": "session.update"}
            await socket.send(json.dumps({**odd, "session": {"type": "realtime"}}))
            answer = json.loads(await socket.recv())
            assert answer["type"] == "session.updated", "and nothing was answered before"


@pytest.mark.parametrize("how", ["unknown", "too_many", "nonsense", "after"])
async def test_what_cannot_be_resumed_is_told(how: str) -> None:
    served = stand()
    async with served.running():
        client = Client(served)
        socket = await client.begin()
        if how == "after":
            await socket.close()
            await wait_for(lambda: not served.server.counters.sessions)
        ways: dict[str, dict[str, Any]] = {
            "unknown": {"token": "x" * 32},
            "too_many": {"seen": 99},
            "nonsense": {"seen": "many"},
            "after": {},
        }
        asked = ways[how]
        async with await client.again(**asked) as another:
            assert client.resumed["error"]["code"] == "resume_expired"
            with pytest.raises(ConnectionClosed, match="resume_expired"):
                await another.recv()
        await socket.close()


async def test_of_two_that_come_back_at_once_none_misses_an_event_in_silence() -> None:
    served = stand()
    async with served.running():
        client = Client(served)
        socket = await client.begin()
        await ask(socket)
        await client.read(socket, 10_000)
        twin = Client(served)
        twin.token = client.token
        came = list[tuple[Client, ClientConnection]]()

        async def come(one: Client, seen: int) -> None:
            came.append((one, await one.again(seen=seen)))

        last = client.seen
        async with anyio.create_task_group() as group:
            group.start_soon(come, client, last - 3)
            group.start_soon(come, twin, 5)
        told = {"specstream.resumed": 0, "error": 0}
        for one, again in came:
            told[one.resumed["type"]] += 1
            with suppress(ConnectionClosed):  # the other one has taken its place
                first = json.loads(await again.recv())
                assert first["specstream"]["seq"] == (last - 2 if one is client else 6)
            again.transport.abort()
        assert told["specstream.resumed"] >= 1
        socket.transport.abort()


def test_only_frames_without_a_gap_count_as_applied() -> None:
    inbox = Inbox(3)
    audio, cancel = (
        AudioCommit(type="input_audio_buffer.commit"),
        ResponseCancel(type="response.cancel"),
    )
    anyio.run(inbox.put, audio, 10)
    anyio.run(inbox.put, audio, 10)
    assert inbox.overtakes(cancel) and inbox.leading == 3
    inbox.overtaken()
    assert inbox.leading == 3
    inbox.applied()
    assert inbox.leading == 4
    inbox.applied()
    assert inbox.leading == 6


async def test_a_session_belongs_to_its_key() -> None:
    served = Stand(ScriptedEngine(["one."]), voice=None, keys=["a", "b"])
    async with served.running():
        client = Client(served)
        socket = await connect(served.url + "?resumable=1&token=a", proxy=None)
        client.token = json.loads(await socket.recv())["specstream"]["resume"]["token"]
        client.events.append({})
        async with await client.again(token=f"{client.token}&token=b"):
            assert client.resumed["error"]["code"] == "resume_expired"
        async with await client.again(token=f"{client.token}&token=a"):
            assert client.resumed["type"] == "specstream.resumed"
        await socket.close()


async def test_a_session_without_a_client_ends_and_frees_its_place() -> None:
    served = Stand(ScriptedEngine(["one."]), voice=None, resume_s=0.05, max_sessions=1)
    async with served.running():
        client = Client(served)
        socket = await client.begin()
        socket.transport.abort()
        await wait_for(lambda: not served.server.counters.sessions)
        async with await client.again():
            assert client.resumed["error"]["code"] == "resume_expired"
        async with served.client() as wire:
            assert (await wire.reply("Hi"))["status"] == "completed"


async def test_a_new_connection_takes_over_from_an_old_one() -> None:
    gate = Gate()
    served = Stand(ScriptedEngine(["one two."], gate=gate), voice=None)
    async with served.running():
        client = Client(served)
        old = await client.begin()
        await ask(old)
        await client.read(old, 4)
        async with await client.again() as new:
            with pytest.raises(ConnectionClosed):
                await old.recv()
            gate.open()
            await client.read(new, 10_000)
        assert client.events[-1]["response"]["status"] == "completed"


async def test_stopping_the_server_ends_sessions_without_a_client() -> None:
    served = stand()
    async with served.running():
        client = Client(served)
        socket = await client.begin()
        socket.transport.abort()
        await settle()
        assert served.server.counters.sessions == 1
    assert served.server.counters.sessions == 0


async def test_a_client_that_reads_nothing_keeps_no_server_from_stopping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def waits_for_room(*_: object) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr("specstream.server.socket.AsgiSocket.close", waits_for_room)
    monkeypatch.setattr("specstream.server.sessions.hosting.CLOSE_TIMEOUT", 0.01)
    served = stand()
    with anyio.fail_after(20):
        async with served.running():
            await Client(served).begin()
    assert served.server.counters.sessions == 0


async def test_who_does_not_ask_sees_the_protocol_as_ever() -> None:
    async with stand().alone() as wire:
        assert "resume" not in wire.seen[0]["specstream"]


class Line:
    """A connection that dies after so many frames; what it took whole, the client has seen."""

    address = ""

    def __init__(self, most: int) -> None:
        self.left, self.seen = most, list[str]()
        self.dead = anyio.Event()

    async def send(self, frame: str | bytes) -> None:
        await anyio.lowlevel.checkpoint()
        if self.dead.is_set():
            raise SocketClosed
        self.seen.append(str(frame))
        self.left -= 1
        if self.left == 0:
            self.dead.set()

    async def receive(self) -> str:
        await self.dead.wait()
        raise SocketClosed

    async def close(self, code: int, reason: str) -> None:
        self.dead.set()

    def unread(self) -> tuple[int, int]:
        return 0, 0

    def gone(self) -> bool:
        return False

    def abort(self) -> None:
        self.dead.set()


@pytest.mark.slow
@pytest.mark.virtual_time
async def test_of_five_hundred_frames_each_comes_once_wherever_and_however_often_it_dies() -> None:
    frames = [f"event {number}" for number in range(500)]
    for cut in range(1, 500):
        first = Line(cut)
        held = ResumableSocket(first, KeyAccount(), 60.0)
        seen = first.seen
        async with anyio.create_task_group() as group:

            async def make(held: ResumableSocket = held) -> None:
                for frame in frames:
                    await held.send(frame)

            async def listen(held: ResumableSocket = held) -> None:
                with suppress(SocketClosed):
                    await held.receive()

            group.start_soon(make)
            group.start_soon(listen)
            await first.dead.wait()
            while len(seen) < len(frames):  # it dies again, after as many frames
                line = Line(cut + 1)  # the first one says how much came from the client
                group.start_soon(held.serve, line, len(seen) - 1, LoopClock())
                while not line.dead.is_set() and len(seen) + len(line.seen) <= len(frames):
                    await anyio.lowlevel.checkpoint()
                assert json.loads(line.seen[0])["type"] == "specstream.resumed"
                seen = seen + line.seen[1:]
            await held.close(1000, "")
            group.cancel_scope.cancel()
        assert seen == frames, f"cut after {cut}"


class LateLine(Line):
    """A connection on which each frame takes a second."""

    async def send(self, frame: str | bytes) -> None:
        await anyio.sleep(1.0)
        await super().send(frame)


@pytest.mark.virtual_time
async def test_who_is_told_that_the_session_goes_on_has_come_in_time() -> None:
    """Its time passes while it is told."""
    first, late = Line(1), LateLine(10)
    held = ResumableSocket(first, KeyAccount(), 5.0)
    async with anyio.create_task_group() as group:

        async def listen() -> None:
            with suppress(SocketClosed):
                await held.receive()

        group.start_soon(listen)
        await held.send("event 0")
        await anyio.sleep(4.5)
        group.start_soon(held.serve, late, 0, LoopClock())
        await anyio.sleep(20.0)
        assert [json.loads(frame)["type"] for frame in late.seen] == ["specstream.resumed"]
        assert not held.closed, "the session goes on, as it was told"
        late.abort()
        await anyio.sleep(6.0)
        assert held.closed, "and ends if nobody comes again"
        group.cancel_scope.cancel()
