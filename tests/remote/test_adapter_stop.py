"""An adapter's server that stops: the turn that runs comes to its end, no other begins."""

import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from specstream.errors import AdapterFailed, AdapterUnavailable, ConfigError
from specstream.remote import channel
from specstream.remote.frames import ChunkFrame, StartFrame, encode
from specstream.remote.server import AdapterServer
from specstream.remote.stage import RemoteStage
from specstream.server import asgi
from specstream.types import Phrase, SpeechBuffer
from tests.server.doubles import wait_for
from tests.server.remotes import at, dial, knock, last_words, spoken
from tests.support.standins import Script, ToneVoice, feed, phrases_of

PHRASES = phrases_of("Hello there. This is another sentence.")


class GatedVoice(ToneVoice):
    """Says that it has begun, then waits to be let on."""

    def __init__(self, begun: anyio.Event, gate: anyio.Event) -> None:
        super().__init__()
        self.begun, self.gate = begun, gate

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        self.begun.set()
        await self.gate.wait()
        async with aclosing(super().synthesize(phrase)) as buffers:
            async for buffer in buffers:
                yield buffer


class BreakingVoice(GatedVoice):
    """Breaks as soon as it is let on."""

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        self.begun.set()
        await self.gate.wait()
        raise AdapterFailed("the voice broke")
        yield  # pragma: no cover


class Stop:
    """Serves until a test says stop, and then drains for so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.port = 0
        self.said = anyio.Event()
        self.begun = anyio.Event()
        self.listening = anyio.Event()

    def ready(self, port: int) -> None:
        self.port = port
        self.listening.set()

    async def until(self, drain: Callable[[float], Coroutine[Any, Any, None]]) -> None:
        await self.said.wait()
        async with anyio.create_task_group() as group:
            group.start_soon(drain, self.seconds)
            await anyio.lowlevel.checkpoint()
            self.begun.set()


async def last_word(port: int) -> tuple[str, int | None]:
    """The error that a newcomer gets, and the code that its connection is closed with."""
    async with knock(port) as socket:
        (error,), code = await last_words(socket)
        return error["message"], code


@asynccontextmanager
async def a_turn(
    stop: Stop,
    gate: anyio.Event,
    perform: Callable[[RemoteStage], Coroutine[Any, Any, None]],
    voice: type[GatedVoice] = GatedVoice,
) -> AsyncGenerator[None, None]:
    """A server that was told to stop, in the middle of a turn; leaving the block waits for both."""
    begun = anyio.Event()
    async with anyio.create_task_group() as group:

        async def serve() -> None:
            server = AdapterServer("voice", partial(voice, begun, gate))
            async with server.start() as port:
                stop.ready(port)
                await stop.until(server.drain)

        group.start_soon(serve)
        await stop.listening.wait()
        async with at(stop.port) as stage:
            async with anyio.create_task_group() as turns:
                turns.start_soon(perform, stage)
                await begun.wait()
                stop.said.set()
                await stop.begun.wait()
                yield


async def test_a_turn_is_finished_and_none_begins() -> None:
    stop, gate = Stop(600), anyio.Event()

    async def perform(stage: RemoteStage) -> None:
        assert await feed(stage, PHRASES) == await spoken(PHRASES)

    async with a_turn(stop, gate, perform):
        assert await last_word(stop.port) == ("this server is stopping; try again later", 1013)
        gate.set()


async def test_a_turn_that_takes_too_long_ends_with_an_error() -> None:
    async def perform(stage: RemoteStage) -> None:
        with pytest.raises(AdapterUnavailable, match="stopping"):
            await feed(stage, PHRASES)

    async with a_turn(Stop(0), anyio.Event(), perform):
        pass


async def test_a_stage_that_breaks_while_the_server_stops_is_not_waited_for() -> None:
    """Ten minutes would be longer than a test may take."""
    gate = anyio.Event()

    async def perform(stage: RemoteStage) -> None:
        with pytest.raises(AdapterFailed, match="broke"):
            await feed(stage, PHRASES)

    async with a_turn(Stop(600), gate, perform, BreakingVoice):
        gate.set()


@pytest.mark.parametrize("drained", [False, True])
async def test_a_connection_whose_adapter_is_still_loading_gets_no_turn(
    drained: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its client is told, nobody waits for the load, and what is loaded nevertheless is closed."""
    go, loading, script = threading.Event(), threading.Event(), Script()
    made: list[ToneVoice] = []

    def make() -> ToneVoice:
        if made:
            loading.set()
            go.wait(20)
        made.append(ToneVoice(script))
        return made[-1]

    server, said = AdapterServer("voice", make), list[tuple[str, int | None]]()

    async def second(port: int) -> None:
        said.append(await last_word(port))

    async with anyio.create_task_group() as group:
        async with server.start() as port, knock(port):
            group.start_soon(second, port)
            await wait_for(loading.is_set)
            if drained:
                await server.drain(0)
                await wait_for(lambda: bool(said))
    assert said == [("this server is stopping; try again later", 1013)]
    go.set()
    await wait_for(lambda: script.closed == 2)
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


async def test_a_server_runs_once_at_a_time() -> None:
    server = AdapterServer("voice", ToneVoice)
    async with server.start() as port:
        with pytest.raises(ConfigError, match="already"):
            async with server.open():
                pass
        async with at(port) as stage:
            assert await feed(stage, PHRASES) == await spoken(PHRASES)
    async with server.start() as port, at(port) as stage:
        assert await feed(stage, PHRASES) == await spoken(PHRASES)


made = [0]


class Loud(ToneVoice):
    """Speaks without end."""

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        for made[0] in range(400):
            await anyio.lowlevel.checkpoint()
            yield SpeechBuffer(bytes(1 << 16))


async def test_a_client_that_reads_nothing_is_dropped_by_a_stop_without_a_word_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (asgi, channel):
        monkeypatch.setattr(module, "CLOSE_TIMEOUT", 0.4)
    async with AdapterServer("voice", Loud) as port:
        stuck = dial(port, max_queue=1)
        socket = await stuck.__aenter__()
        await socket.send(encode(StartFrame(window=1024)))
        await socket.send(encode(ChunkFrame(phrase=PHRASES[0])))
        await wait_for(lambda: made[0] > 100)  # more than the sockets between them take
    socket.transport.abort()
    assert not [one for one in caplog.records if one.levelname == "ERROR"]
