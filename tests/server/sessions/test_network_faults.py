"""The package's client and the server on a bad network: slow, cut anywhere, or silent without an end."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import anyio
import pytest
from websockets.asyncio.client import connect

from specstream.client import dial
from specstream.client.client import AudioDelta, RealtimeClient, RealtimeEvent
from specstream.errors import ConnectionFailed
from specstream.server import asgi
from specstream.testing import ScriptedEngine
from tests.server.doubles import FreeClock, Stand, end_of, read, text_of, wait_for
from tests.support.faulty_network import Fault, FaultyProxy

SLOW = [Fault("delay"), Fault("trickle")]
AT_ONCE = 3
WORDS = "One two three four five, six seven eight nine ten."


def faults(kind: str, way: str, seed: int) -> list[Fault]:
    """Three connections that break one after another; ``after``: mostly in the middle of a frame.

    The first one has at least told the client how to come back.
    """
    random = Random(f"{kind} {way} {seed}")
    least, most = (60, 330) if way == "up" else (4000, 40_000)
    each = random.randrange(least, most), random.randrange(most), random.randrange(200)
    return [Fault(kind, way, after) for after in each]  # type: ignore[arg-type]


def sound(events: list[RealtimeEvent]) -> bytes:
    return b"".join(event.pcm for event in events if isinstance(event, AudioDelta))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides ask for a sign of life every moment."""
    monkeypatch.setattr(asgi, "PING_S", 0.1)
    monkeypatch.setattr(asgi, "PONG_S", 0.4)
    soon: dict[str, Any] = {"ping_interval": 0.1, "ping_timeout": 0.4, "close_timeout": 0.2}
    monkeypatch.setattr(dial, "connect", partial(connect, **soon))


@asynccontextmanager
async def served(reply: str = WORDS) -> AsyncGenerator[Stand, None]:
    """A server; at the end, no client has a place in it any more."""
    stand = Stand(ScriptedEngine([reply]), clock=FreeClock(), resume_s=5.0)
    async with stand.running():
        yield stand
        with anyio.fail_after(4.0):
            await wait_for(lambda: not stand.server.counters.sessions)
            await wait_for(lambda: not stand.server.limit.clients.total())


@asynccontextmanager
async def talking(proxy: FaultyProxy, *, resume_s: float) -> AsyncGenerator[RealtimeClient, None]:
    async with proxy.running() as port:
        url = f"ws://127.0.0.1:{port}/v1/realtime"
        async with RealtimeClient.connect(url, resume_s=resume_s, open_timeout=1.0) as client:
            yield client


async def plain_sound(stand: Stand) -> bytes:
    async with RealtimeClient.connect(stand.url) as client:
        return sound(await read(client.respond("Hi")))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("kind", ["close", "reset", "swallow"])
async def test_a_client_that_comes_back_gets_its_replies_whole_and_once(kind: str, way: str) -> None:
    async with served() as stand:
        expected = await plain_sound(stand)
        struck: list[int] = []

        async def talk(seed: int) -> None:
            proxy = FaultyProxy(stand.port, faults(kind, way, seed))
            async with talking(proxy, resume_s=10.0) as client:
                for text in ("Hi", "And then?"):
                    events = await read(client.respond(text))
                    assert text_of(events) == WORDS
                    assert sound(events) == expected
                    assert end_of(events).status == "completed"
                struck.append(proxy.struck)

        async with anyio.create_task_group() as group:
            for seed in range(AT_ONCE):
                group.start_soon(talk, seed)
        assert min(struck) >= 2, "connections did break"


@pytest.mark.parametrize("fault", SLOW, ids=lambda fault: fault.kind)
@pytest.mark.parametrize("resume_s", [0.0, 10.0])
async def test_a_slow_network_is_no_fault(
    fault: Fault, resume_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # a sign of life is late here, too
    async with served("One two three.") as stand:
        expected = await plain_sound(stand)
        proxy = FaultyProxy(stand.port, [fault])
        async with talking(proxy, resume_s=resume_s) as client:
            events = await read(client.respond("Hi"))
            assert text_of(events) == "One two three." and sound(events) == expected
            assert proxy.connections == proxy.struck == 1


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("kind", ["close", "reset", "swallow"])
async def test_without_coming_back_a_broken_connection_is_a_typed_error(kind: str, way: str) -> None:
    async with served() as stand:
        await plain_sound(stand)

        async def talk(seed: int) -> None:
            proxy = FaultyProxy(stand.port, faults(kind, way, seed)[:1])
            with pytest.raises(ConnectionFailed):
                async with talking(proxy, resume_s=0.0) as client:
                    await read(client.respond("Hi"))
            assert (proxy.connections, proxy.struck) == (1, 1)

        async with anyio.create_task_group() as group:
            for seed in range(AT_ONCE):
                group.start_soon(talk, seed)


async def test_a_client_that_is_lost_without_a_word_leaves_no_place_behind() -> None:
    """The network swallows all, and nobody comes back: the server notices by itself."""
    stand = Stand(ScriptedEngine([WORDS]), clock=FreeClock(), resume_s=0.2, max_sessions=2)
    async with stand.running():
        proxy = FaultyProxy(stand.port, [Fault("swallow", "up", 2000)] * 2)
        async with proxy.running() as port:
            for query in ("", "?resumable=1"):
                url = f"ws://127.0.0.1:{port}/v1/realtime{query}"
                socket = await connect(url, proxy=None, ping_interval=None)
                await socket.send("x" * 3000)
                await socket.recv()
                await wait_for(lambda: proxy.struck > 0 and not stand.server.counters.sessions)
                assert not stand.server.limit.clients.total()
                socket.transport.abort()
