"""Adapters on sockets of this machine, and cables that can be cut."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import anyio
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from specstream.remote.channel import MAX_SIZE
from specstream.remote.frames import SUBPROTOCOL, Kind, ReadyFrame, encode
from specstream.remote.protocol import WINDOW
from specstream.remote.server import adapter_server
from specstream.remote.stage import RemoteStage
from specstream.stages.pipeline import Pipeline, Stage
from specstream.stages.stages import AvatarStage, PromptStage, VoiceStage
from specstream.types import Flush, Revoke, ScenePrompt
from tests.server.doubles import wait_for
from tests.support.sockets import listen
from tests.support.standins import Board, Face, Relay, Script, ToneVoice, feed, phrases_of

TEXT = (
    "Hello there [smile]. This is „another“ sentence. And. Ein drittes Wort, 東京 too. "
    "A really [wave] long one now that goes on and on and on until it stops. Bye [nod]"
)
PHRASES = phrases_of(TEXT)
KINDS: tuple[Kind, ...] = ("voice", "avatar", "prompt")
MAKE: dict[Kind, Callable[[Script | None], Any]] = {"voice": ToneVoice, "avatar": Face, "prompt": Board}
LOCAL: dict[Kind, Callable[[Any], Stage[Any, Any]]] = {
    "voice": VoiceStage,
    "avatar": AvatarStage,
    "prompt": PromptStage,
}


@asynccontextmanager
async def served(
    kind: Kind, make: Callable[[], Any], *, window: int = WINDOW
) -> AsyncGenerator[RemoteStage, None]:
    """Serve adapters that ``make`` makes; the stage that stands for them."""
    async with adapter_server(kind, make, window=window) as port, at(port, kind, window=window) as stage:
        yield stage


def remote(
    kind: Kind, script: Script | None = None, *, window: int = WINDOW
) -> AbstractAsyncContextManager[RemoteStage]:
    """A served adapter of the tests, and the stage that stands for it."""
    return served(kind, lambda: MAKE[kind](script), window=window)


@asynccontextmanager
async def pipeline(
    remotes: Sequence[Kind], scripts: dict[Kind, Script] | None = None, **options: Any
) -> AsyncGenerator[Pipeline, None]:
    """Voice and avatar in one branch, prompts in another; ``remotes`` behind sockets."""
    scripts = scripts or {}
    async with AsyncExitStack() as stack:
        stages: dict[str, Stage[Any, Any]] = {}
        for kind in KINDS:
            if kind in remotes:
                stages[kind] = await stack.enter_async_context(remote(kind, scripts.get(kind)))
            else:
                stages[kind] = LOCAL[kind](MAKE[kind](scripts.get(kind)))
        branches = [[stages["voice"], stages["avatar"]], [stages["prompt"]]]
        yield Pipeline(branches, head=Relay(), **options)


def at(port: int, kind: Kind = "voice", **options: Any) -> RemoteStage:
    """The stage of an adapter that is served at a port of this machine."""
    return RemoteStage(f"ws://127.0.0.1:{port}", kind, **options)


async def spoken(items: Sequence[Any]) -> list[Any]:
    """What a voice in this process gives."""
    return await feed(VoiceStage(ToneVoice()), items)


def knock(port: int, **options: Any) -> connect:
    """A bare connection, on which nothing was read."""
    offered = {"subprotocols": [Subprotocol(SUBPROTOCOL)], "proxy": None, "compression": None}
    return connect(f"ws://127.0.0.1:{port}", **{**offered, "max_size": MAX_SIZE, **options})


@asynccontextmanager
async def dial(port: int, **options: Any) -> AsyncGenerator[ClientConnection, None]:
    """A bare connection, greeted already."""
    async with knock(port, **options) as socket:
        ready = json.loads(await socket.recv())
        assert ready["type"] == "ready"
        yield socket


async def last_words(socket: ClientConnection) -> tuple[list[dict[str, Any]], int | None]:
    """The error frames that came before the close, and its code."""
    errors: list[dict[str, Any]] = []
    with anyio.fail_after(20):
        try:
            while True:
                message = await socket.recv()
                assert not errors, "nothing comes after an error"
                if isinstance(message, str) and json.loads(message)["type"] == "error":
                    errors.append(json.loads(message))
        except ConnectionClosed:
            pass
    return errors, socket.close_code


async def a_turn_elsewhere(port: int) -> None:
    """Run a whole turn on another connection, as a clock: all pending work is done after it."""
    async with at(port) as other:
        assert await feed(other, PHRASES) == await spoken(PHRASES)


def unnumbered(items: list[Any]) -> list[Any]:
    """Leave out the numbers of shots, which run on through the life of their adapter."""
    return [replace(i, shot_id="") if isinstance(i, ScenePrompt) else i for i in items]


class Cable:
    """A TCP proxy whose connections a test can cut, or leave open and pass nothing on."""

    def __init__(self, target: int) -> None:
        self.frozen = False
        self._target = target
        self._writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def plugged(self) -> AsyncGenerator[int, None]:
        server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            self.cut()
            await wait_for(lambda: not self._writers)

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        mine = [writer, far_writer]
        self._writers += mine
        await asyncio.gather(self._copy(reader, far_writer), self._copy(far_reader, writer))
        for end in mine:
            end.transport.abort()
            self._writers.remove(end)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(b"" if self.frozen else data)
                await writer.drain()
        writer.transport.abort()


LAYOUTS: list[tuple[Kind, ...]] = [
    (),
    ("voice", "avatar", "prompt"),
    ("voice",),
    ("avatar",),
    ("prompt",),
    ("voice", "prompt"),
]


def with_controls(seed: int) -> list[Any]:
    """The phrases with flushes and revokes among them; what is revoked is said again."""
    rng = random.Random(seed)
    items: list[Any] = []
    for phrase in PHRASES:
        items.append(phrase)
        if rng.random() < 0.4:
            items += [Revoke(phrase.chars.start), phrase]
        if rng.random() < 0.3:
            items.append(Flush())
    return items


@asynccontextmanager
async def impostor(
    answer: Callable[[ServerConnection, dict[str, Any]], Any], kind: Kind = "voice", **options: Any
) -> AsyncGenerator[RemoteStage, None]:
    """A stage at a server that greets as an adapter; then ``answer`` decides what it sends."""

    async def handle(socket: ServerConnection) -> None:
        await socket.send(encode(ReadyFrame(kind=kind, adapter="impostor", window=4)))
        try:
            async for message in socket:
                if isinstance(message, str):
                    await answer(socket, json.loads(message))
        except ConnectionClosed:
            pass

    async with (
        listen(handle, subprotocols=[Subprotocol(SUBPROTOCOL)], close_timeout=0.1) as port,
        at(port, kind, **options) as stage,
    ):
        yield stage
