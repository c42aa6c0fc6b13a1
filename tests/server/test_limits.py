"""Readers that stop, trickle or are merely slow, on real sockets with small windows."""

import json
import socket as sockets
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from specstream import Engine
from specstream.server import server
from specstream.server.limits import MAX_UNSENT, MIN_BYTES_PER_S, PATIENCE_S, drop_slow_reader
from specstream.server.sessions import responses
from specstream.server.socket import TRANSPORT, AsgiSocket, ServedSocket
from specstream.testing import ScriptedEngine, chunks_of
from tests.server.doubles import WORDS, FreeClock, Gate, HandClock, Stand, Wire, settle, wait_for
from tests.support.tiny import save_pair

WINDOW = 4096


class _Pipe:
    """A socket as `drop_slow_reader` sees it: ``unsent`` bytes wait in its transport."""

    def __init__(self) -> None:
        self.unsent, self.written, self.aborted, self.left = 0, 0, False, False

    def gone(self) -> bool:
        return self.left

    def unread(self) -> tuple[int, int]:
        return self.unsent, 0

    def abort(self) -> None:
        self.aborted = True


async def seconds_until_dropped(step: Callable[[_Pipe, int], None], *, limit: int) -> int | None:
    """Run `drop_slow_reader` with ``step(pipe, second)`` in each second; returns when it gave up."""
    pipe, clock = _Pipe(), HandClock()
    async with anyio.create_task_group() as group:
        group.start_soon(drop_slow_reader, cast("ServedSocket", pipe), lambda: pipe.written, clock)
        await anyio.wait_all_tasks_blocked()
        for second in range(1, limit + 1):
            step(pipe, second)
            clock.advance(1.0)
            await anyio.wait_all_tasks_blocked()
            if pipe.aborted:
                return second
        group.cancel_scope.cancel()
    return None


def test_a_socket_that_was_closed_under_its_session_is_gone() -> None:
    """Its transport has closed it, and the session reads that only at its next turn of the loop."""
    here, peer = sockets.socketpair()

    class Transport:
        def get_extra_info(self, name: str) -> sockets.socket:
            return here

    scope: dict[str, Any] = {"type": "websocket", "extensions": {TRANSPORT: {}}}
    scope["extensions"][TRANSPORT]["transport"] = Transport()
    socket = AsgiSocket(WebSocket(scope, cast(Any, None), cast(Any, None)))
    assert not socket.gone()
    peer.close()
    assert socket.gone()
    here.close()
    assert socket.gone()


async def test_how_long_a_reader_is_waited_for() -> None:
    def dead(pipe: _Pipe, _: int) -> None:
        pipe.unsent = pipe.written = 9000

    def trickle(pipe: _Pipe, second: int) -> None:
        pipe.unsent, pipe.written = 9000, 9000 + second * MIN_BYTES_PER_S // 2

    def slow(pipe: _Pipe, _: int) -> None:
        pipe.unsent, pipe.written = 9000, pipe.written + MIN_BYTES_PER_S

    def pausing(pipe: _Pipe, second: int) -> None:
        pipe.unsent = 9000
        pipe.written += 30 * MIN_BYTES_PER_S if second % 15 == 0 else 0

    def idle(pipe: _Pipe, _: int) -> None:
        pipe.unsent = 0

    def flood(pipe: _Pipe, second: int) -> None:
        pipe.unsent += MAX_UNSENT // 4

    def far_away(pipe: _Pipe, _: int) -> None:
        pipe.unsent, pipe.written = 3000, pipe.written + 3000  # acknowledged a second later

    def leaves(pipe: _Pipe, second: int) -> None:
        pipe.left = second == 7

    assert await seconds_until_dropped(leaves, limit=200) == 7
    assert await seconds_until_dropped(far_away, limit=200) is None
    assert await seconds_until_dropped(dead, limit=100) == 1 + PATIENCE_S
    assert await seconds_until_dropped(trickle, limit=100) == 1 + 2 * PATIENCE_S
    assert await seconds_until_dropped(slow, limit=200) is None
    assert await seconds_until_dropped(pausing, limit=200) is None
    assert await seconds_until_dropped(idle, limit=200) is None
    assert await seconds_until_dropped(flood, limit=100) == 5


@asynccontextmanager
async def narrow(stand: Stand) -> AsyncGenerator[Wire, None]:
    """A client with the smallest window there is; reads when told to."""
    socket = sockets.socket()
    socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, WINDOW)
    socket.setblocking(False)
    await anyio.lowlevel.checkpoint()
    socket.setblocking(True)
    socket.connect(("127.0.0.1", stand.port))
    options: dict[str, Any] = {"sock": socket, "ping_interval": None, "max_queue": 1}
    async with connect(stand.url, proxy=None, close_timeout=0, **options) as client:
        wire = Wire(client)
        await wire.until("session.created")
        try:
            yield wire
        finally:
            client.transport.abort()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_pair(tmp_path_factory.mktemp("pair"), context=4096, eos=False)


async def test_five_that_never_read_hold_nobody_up(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take every place of the engine until they are dropped; then the sixth is served."""
    monkeypatch.setattr(server, "SEND_BUFFER", WINDOW)  # so that they stand still sooner
    timer = HandClock()
    options: dict[str, Any] = {"max_running": 1, "max_parked": 1, "proposer": "off"}
    async with Engine.load(*pair, dtype="float32", **options) as engine, AsyncExitStack() as stack:
        stand = Stand(cast("ScriptedEngine", engine), voice=None, timer=timer)
        await stack.enter_async_context(stand.running())
        hostile = [await stack.enter_async_context(narrow(stand)) for _ in range(5)]
        sixth = await stack.enter_async_context(stand.client())
        long = {"max_output_tokens": 4000}
        for wire in hostile:
            await wire.ask("x", **long)
            wire.socket.transport.pause_reading()
        while await _parked(engine) < 2:
            pass
        await sixth.ask("y", max_output_tokens=3)
        await sixth.until("response.created")
        steps = 0
        while stand.server.counters.sessions > 1:
            timer.advance(1.0)
            await settle()
            steps += 1
        assert steps >= PATIENCE_S
        done = await sixth.done()
        assert done["status"] == "incomplete"  # its three tokens
        assert done["usage"]["output_tokens"] == 3


async def _parked(engine: Engine) -> int:
    """Requests under way whose consumers have stopped."""
    return await engine.ask(
        lambda core: sum(request.delivery.parked for request in core.scheduler.running)
    )


async def standing_still(engine: ScriptedEngine, rounds: int = 20) -> int:
    """Wait until the model has written nothing for so many rounds; how many chunks it has left."""
    await wait_for(lambda: bool(engine.generations))
    left, standing = -1, 0
    while standing < rounds:
        await settle()
        now = len(engine.generations[0].ahead)
        left, standing = now, standing + 1 if now == left else 0
    return left


@pytest.mark.parametrize("modality", ["text", "audio"])
async def test_a_reply_to_a_reader_that_stops_is_parked_and_its_cancel_comes_soon(modality: str) -> None:
    words = 20_000
    engine = ScriptedEngine([chunks_of(" ".join(["word"] * words))])
    stand = Stand(engine)  # a free clock: nothing but the socket holds the audio back
    async with stand.running(), narrow(stand) as wire:
        await wire.ask("Hi", output_modalities=[modality])
        wire.socket.transport.pause_reading()
        left = await standing_still(engine)
        assert left > words - 2_000, "the model has stopped writing soon after its reader"
        await wire.send("response.cancel")
        await wait_for(lambda: engine.generations[0].report.finish_reason == "cancelled")
        wire.socket.transport.resume_reading()
        wire.seen.clear()
        await wire.until("response.done")
        queued = sum(len(json.dumps(event)) for event in wire.seen)
        assert queued < 300_000, "ten seconds of a reader that takes 30 kB a second"


async def test_a_session_writes_one_reply_of_its_conversation_and_one_out_of_band() -> None:
    gate = Gate()
    engine = ScriptedEngine(["one."], gate=gate)
    async with Stand(engine, voice=None).alone() as wire:
        await wire.ask("Hi")
        for _ in range(responses.MAX_RESPONSES - 1):
            await wire.ask("Hi", conversation="none")
        for _ in range(responses.MAX_RESPONSES):
            await wire.until("response.created")
        await settle()
        assert len(engine.generations) == 2
        gate.open()
        for _ in range(responses.MAX_RESPONSES):
            done = await wire.done()
            assert done["status"] == "completed"
        assert len(engine.generations) == responses.MAX_RESPONSES


async def test_a_reply_that_waits_for_its_place_can_be_cancelled() -> None:
    engine = ScriptedEngine(["one."], gate=Gate())
    async with Stand(engine, voice=None).alone() as wire:
        ids = []
        for _ in range(2):
            await wire.ask("Hi", conversation="none")
            ids.append((await wire.until("response.created"))["response"]["id"])
        for id in reversed(ids):
            await wire.send("response.cancel", response_id=id)
            done = await wire.done()
            assert (done["id"], done["status"]) == (id, "cancelled")
        assert len(engine.generations) == 1


@pytest.mark.parametrize("reply", [WORDS, WORDS * 100], ids=["fits into the kernel", "long"])
async def test_a_socket_that_is_never_read_is_dropped(reply: str) -> None:
    timer = HandClock()
    stand = Stand(ScriptedEngine([reply]), timer=timer, clock=FreeClock())
    async with stand.running(), narrow(stand) as wire:
        modality = "audio" if reply != WORDS else "text"
        await wire.ask("Hi", output_modalities=[modality])
        wire.socket.transport.pause_reading()
        await standing_still(stand.engine)
        steps = 0
        while stand.server.counters.sessions:
            timer.advance(1.0)
            await settle()
            steps += 1
        assert PATIENCE_S <= steps <= PATIENCE_S + 2
        wire.socket.transport.resume_reading()
        with pytest.raises(ConnectionClosed):
            await wire.until("what never comes")
        assert all(voice.closed for voice in stand.voices)
