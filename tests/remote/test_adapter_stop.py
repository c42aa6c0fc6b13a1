"""An adapter's server that stops: the turn that runs comes to its end, no other begins."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from specstream.errors import AdapterFailed, AdapterUnavailable
from specstream.remote.server import AdapterServer
from specstream.remote.stage import RemoteStage
from specstream.types import Phrase, SpeechBuffer
from tests.server.remotes import at, knock, last_words, spoken
from tests.support.standins import ToneVoice, feed, phrases_of

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
