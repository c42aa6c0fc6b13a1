"""Adapters behind their own sockets: the same items, and typed errors when things go wrong."""

from __future__ import annotations

import asyncio
import json
import random
import socket as sockets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from specstream.errors import AdapterFailed, ConfigError, ConnectionFailed, ProtocolError
from specstream.pipeline.link import Link
from specstream.pipeline.stage import Pipeline, Stage, StageFailed
from specstream.pipeline.stages import AvatarStage, PromptStage, VoiceStage
from specstream.types import AvatarCue, Cancel, Flush, Revoke, ScenePrompt, Speech
from specstream.ws.adapter_server import adapter_server
from specstream.ws.listen import listen
from specstream.ws.remote import RemoteStage
from specstream.ws.stage_codec import MAX_MESSAGE, encode
from specstream.ws.stage_frames import SUBPROTOCOL, Kind, ReadyFrame
from specstream.ws.stage_protocol import WINDOW
from tests.standins import (
    Board,
    Face,
    Relay,
    Script,
    ToneVoice,
    events_by_source,
    feed,
    phrases_of,
    stream,
)

TEXT = (
    "Hello there [smile]. This is „another“ sentence. And. Ein drittes Wort, 東京 too. "
    "A really [wave] long one now that goes on and on and on until it stops. Bye [nod]"
)
PHRASES = phrases_of(TEXT)
KINDS: tuple[Kind, ...] = ("voice", "avatar", "prompt")
MAKE: dict[Kind, Callable[[Script | None], Any]] = {
    "voice": ToneVoice,
    "avatar": Face,
    "prompt": Board,
}
LOCAL: dict[Kind, Callable[[Any], Stage[Any, Any]]] = {
    "voice": VoiceStage,
    "avatar": AvatarStage,
    "prompt": PromptStage,
}


@asynccontextmanager
async def remote(
    kind: Kind, script: Script | None = None, *, window: int = WINDOW, **options: Any
) -> AsyncGenerator[RemoteStage, None]:
    """A served adapter and the stage that stands for it."""
    async with (
        adapter_server(kind, lambda: MAKE[kind](script), window=window) as port,
        RemoteStage(f"ws://127.0.0.1:{port}", kind, window=window, **options) as stage,
    ):
        yield stage


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


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until ``condition`` holds."""
    with anyio.fail_after(20):
        while not condition():
            await anyio.lowlevel.checkpoint()


async def a_turn_elsewhere(port: int) -> None:
    """A whole turn on another connection, as a clock: by then everything due has happened."""
    async with RemoteStage(f"ws://127.0.0.1:{port}", "voice") as other:
        assert await feed(other, PHRASES) == await feed(VoiceStage(ToneVoice()), PHRASES)


def unnumbered(items: list[Any]) -> list[Any]:
    """Shots are numbered through the life of their adapter; leave that out."""
    return [replace(i, shot_id="") if isinstance(i, ScenePrompt) else i for i in items]


class Cable:
    """A TCP connection's middle, that can be cut."""

    def __init__(self, target: int) -> None:
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
            await until(lambda: not self._writers)

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

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


# --- the same items -----------------------------------------------------------------------------

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


@pytest.mark.parametrize("remotes", LAYOUTS, ids=lambda kinds: "+".join(kinds) or "local")
@pytest.mark.parametrize("seed", range(3))
async def test_wherever_the_adapters_run_the_items_are_the_same(
    remotes: Sequence[Kind], seed: int
) -> None:
    items = with_controls(seed)
    voiced = await feed(VoiceStage(ToneVoice()), items)
    board = Board()  # its shots are numbered through, so it lives as long as the served one
    async with pipeline(remotes, capacity=random.Random(seed).choice([1, 3, 64])) as line:
        for _ in range(2):  # the second turn on the same sockets
            async with line.run(stream(items)) as run:
                found = await events_by_source(run)
            assert found.pop("engine") == found.pop("text") == items
            assert found.pop("voice") == voiced
            assert found.pop("avatar") == await feed(AvatarStage(Face()), voiced)
            assert found.pop("prompt") == await feed(PromptStage(board), items)
            assert not found


async def test_one_connection_serves_turn_after_turn_and_turns_side_by_side() -> None:
    made: list[ToneVoice] = []

    def make() -> ToneVoice:
        made.append(ToneVoice())
        return made[-1]

    expected = await feed(VoiceStage(ToneVoice()), PHRASES)
    async with (
        adapter_server("voice", make) as port,
        RemoteStage(f"ws://127.0.0.1:{port}", "voice") as stage,
    ):
        ready = await stage.connect()
        assert (ready.adapter, ready.voice) == ("tone", ToneVoice().capabilities)
        for _ in range(3):
            assert await feed(stage, PHRASES) == expected
        assert len(made) == 1
        results = await asyncio.gather(*(feed(stage, PHRASES) for _ in range(5)))
        assert results == [expected] * 5
        assert len(made) == 5
        await until(lambda: sum(voice.script.closed for voice in made) == 3)  # two stay warm
    assert [voice.script.closed for voice in made] == [1] * 5


async def test_an_empty_turn() -> None:
    for kind in KINDS:
        async with remote(kind) as stage:
            assert await feed(stage, []) == []
            assert await feed(stage, [Flush()]) == [Flush()]


# --- cancel -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["stalled", "between"])
async def test_a_cancel_in_the_middle_of_a_turn(kind: Kind, where: str) -> None:
    """Everything after the cancel is the rest, then the Cancel; the connection stays good."""
    inputs: dict[Kind, list[Any]] = {
        "voice": list(PHRASES),
        "avatar": await feed(VoiceStage(ToneVoice()), PHRASES),
        "prompt": list(PHRASES),
    }
    script = Script(stall_at=2 if where == "stalled" and kind != "avatar" else None)
    async with remote(kind, script) as stage:
        link: Link[Any] = Link(1024)
        for item in inputs[kind]:
            await link.send(item)
        outputs = stage.run(link.inlet)
        before = [await anext(outputs)]
        if script.stall_at:
            with anyio.fail_after(20):
                await script.stalled.wait()
        link.cancel(Cancel("barge-in"))
        after: list[Any] = [item async for item in outputs]
        assert after.pop() == Cancel("barge-in")
        if kind == "avatar":
            assert [cue.name for cue in after][-1:] == ["sil"], "the face comes to rest"
            assert len(after) <= 2
        else:
            assert after == []
        script.stall_at = None
        again = unnumbered(await feed(stage, inputs[kind]))
        assert again == unnumbered(await feed(LOCAL[kind](MAKE[kind](None)), inputs[kind]))
        assert unnumbered(before) == again[:1]
        assert script.running == 0
        assert script.closed == 0, "the same adapter, still connected"


@pytest.mark.parametrize("remotes", LAYOUTS, ids=lambda kinds: "+".join(kinds) or "local")
@pytest.mark.parametrize("stalling", KINDS)
async def test_a_cancelled_pipeline_comes_to_rest(remotes: Sequence[Kind], stalling: Kind) -> None:
    scripts: dict[Kind, Script] = {kind: Script() for kind in KINDS}
    scripts[stalling].stall_at = 3
    stop = 3 if stalling == "avatar" else None  # pure computation can't stall: cancel at once
    async with pipeline(remotes, scripts) as line:
        async with line.run(stream(PHRASES)) as run:
            found: dict[str, list[Any]] = {}
            async for event in run:
                found.setdefault(event.source, []).append(event.item)
                if scripts[stalling].stalled.is_set() or event.seq == stop:
                    run.cancel("enough")
        for kind in KINDS:
            assert found[kind][-1] == Cancel("enough"), kind
            assert found[kind].count(Cancel("enough")) == 1
            assert not [item for item in found[kind] if isinstance(item, StageFailed)]
        scripts[stalling].stall_at = None
        async with line.run(stream(PHRASES)) as run:
            found = await events_by_source(run)
        assert found["voice"] == await feed(VoiceStage(ToneVoice()), PHRASES)


@pytest.mark.parametrize("seed", range(40))
async def test_cancels_at_any_moment(seed: int) -> None:
    """Whenever it comes, the turn ends with one Cancel or was over, and the next is whole."""
    rng = random.Random(seed)
    kind = rng.choice(KINDS)
    items: list[Any] = list(PHRASES[:4])
    if kind == "avatar":
        items = await feed(VoiceStage(ToneVoice()), items)
    async with remote(kind, window=rng.choice([1, 2, 16])) as stage:
        for _ in range(6):
            link: Link[Any] = Link(len(items) + 1)
            for item in items:
                await link.send(item)
            if rng.random() < 0.8:
                link.close()
            pause = rng.randrange(150)

            async def cancel(link: Link[Any] = link, pause: int = pause) -> None:
                for _ in range(pause):
                    await anyio.lowlevel.checkpoint()
                link.cancel(Cancel("now"))

            async with anyio.create_task_group() as group:
                group.start_soon(cancel)
                found = [output async for output in stage.run(link.inlet)]
            assert found.count(Cancel("now")) <= 1
            if Cancel("now") in found:
                assert found[-1] == Cancel("now")
            if kind == "avatar" and any(isinstance(item, AvatarCue) for item in found):
                cues = [item for item in found if isinstance(item, AvatarCue)]
                assert cues[-1].name == "sil", "the face comes to rest"
        whole = unnumbered(await feed(LOCAL[kind](MAKE[kind](None)), items))
        assert unnumbered(await feed(stage, items)) == whole


async def test_cancelling_before_anybody_answers() -> None:
    with sockets.create_server(("127.0.0.1", 0)) as silent:  # connects, and says nothing
        stage = RemoteStage(f"ws://127.0.0.1:{silent.getsockname()[1]}", "voice")
        link: Link[Any] = Link()

        async def cancel() -> None:
            with anyio.fail_after(20):
                accepted, _ = await asyncio.get_running_loop().sock_accept(silent)
            with accepted:
                link.cancel(Cancel("never mind"))

        silent.setblocking(False)
        async with anyio.create_task_group() as group:
            group.start_soon(cancel)
            assert [item async for item in stage.run(link.inlet)] == [Cancel("never mind")]


@asynccontextmanager
async def impostor(
    answer: Callable[[ServerConnection, dict[str, Any]], Any], kind: Kind = "voice"
) -> AsyncGenerator[int, None]:
    """A server that says it is an adapter and then does as ``answer`` likes."""

    async def handle(socket: ServerConnection) -> None:
        await socket.send(encode(ReadyFrame(kind=kind, adapter="impostor", window=4)))
        try:
            async for message in socket:
                if isinstance(message, str):
                    await answer(socket, json.loads(message))
        except ConnectionClosed:
            pass

    async with listen(handle, subprotocols=[Subprotocol(SUBPROTOCOL)], close_timeout=0.1) as port:
        yield port


async def test_an_adapter_that_never_answers_a_cancel_is_left() -> None:
    async def ignore(socket: ServerConnection, frame: dict[str, Any]) -> None:
        if frame["type"] == "end":
            link.cancel(Cancel("enough"))

    async with impostor(ignore) as port:
        stage = RemoteStage(f"ws://127.0.0.1:{port}", "voice", cancel_timeout=0.0)
        link: Link[Any] = Link()
        link.close()
        assert [item async for item in stage.run(link.inlet)] == [Cancel("enough")]
        assert stage._idle == []


# --- back-pressure ------------------------------------------------------------------------------


async def test_a_reader_that_stops_stops_the_remote_voice() -> None:
    """Counted in buffers: what was read, a window on its way, and one in the voice's hands."""
    script = Script()
    made = 0

    def make() -> ToneVoice:
        nonlocal made
        made += 1
        return ToneVoice(script if made == 1 else None)

    window = 4
    async with (
        adapter_server("voice", make) as port,
        RemoteStage(f"ws://127.0.0.1:{port}", "voice", window=window) as stage,
    ):
        link: Link[Any] = Link(1024)
        many = phrases_of("A word and another word. " * 200)
        for phrase in many:
            await link.send(phrase)
        link.close()
        outputs = stage.run(link.inlet)
        read: list[Any] = [await anext(outputs) for _ in range(6)]
        pieces = sum(len(piece.pcm) > 0 for piece in read)  # the last of a phrase is the stage's
        limit = pieces + window + 1
        with anyio.fail_after(20):
            await script.when_made(pieces + window - 1).wait()
        for _ in range(3):
            await a_turn_elsewhere(port)
        assert script.made <= limit
        assert script.made < sum(1 for _ in many)
        assert script.running == 1
        rest = [piece async for piece in outputs]
        assert [*read, *rest] == await feed(VoiceStage(ToneVoice()), many), "and nothing is lost"


async def test_a_stage_that_does_not_read_stops_its_source() -> None:
    """Upwards the same: phrases for a stalled voice stay with whoever has them."""
    script = Script(stall_at=0)
    async with pipeline(["voice"], {"voice": script}, capacity=2) as line:
        taken: list[Any] = []
        async with line.run(stream(PHRASES[:1] * 500, taken.append)) as run:
            async with anyio.create_task_group() as group:

                async def read() -> None:
                    async for _ in run:
                        pass

                group.start_soon(read)
                await script.stalled.wait()
                previous = -1
                while previous != len(taken):
                    previous = len(taken)
                    await feed(VoiceStage(ToneVoice()), PHRASES)
                    async with remote("voice") as other:
                        await feed(other, PHRASES)
                assert len(taken) <= WINDOW + 12
                group.cancel_scope.cancel()


# --- failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "error", [RuntimeError("out of paint"), AdapterFailed("no voice today")], ids=str
)
async def test_a_broken_adapter_fails_alike_wherever_it_runs(kind: Kind, error: Exception) -> None:
    outcomes = []
    for remotes in ((), (kind,)):
        script = Script(break_at=2)
        script.error = error
        async with pipeline(remotes, {kind: script}) as line:
            async with line.run(stream(PHRASES)) as run:
                found = await events_by_source(run)
            failure = found[kind].pop()
            assert isinstance(failure, StageFailed)
            outcomes.append((found, type(failure.error), str(failure.error)))
            script.break_at = None
            async with line.run(stream(PHRASES)) as run:  # and the next turn is fine
                assert not [
                    f for f in (await events_by_source(run))[kind] if isinstance(f, StageFailed)
                ]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0]["text"] == PHRASES


@pytest.mark.parametrize("how", ["cable cut", "server ends"])
async def test_a_connection_lost_in_the_middle_of_a_turn(how: str) -> None:
    script = Script(stall_at=5)
    async with AsyncExitStack() as stack, AsyncExitStack() as server:
        target = await server.enter_async_context(
            adapter_server("voice", lambda: ToneVoice(script))
        )
        cable = Cable(target)
        port = await stack.enter_async_context(cable.plugged())
        stage = await stack.enter_async_context(RemoteStage(f"ws://127.0.0.1:{port}", "voice"))
        line = Pipeline([[stage, AvatarStage(Face())], [PromptStage(Board())]], head=Relay())

        async def lose() -> None:
            await script.stalled.wait()
            cable.cut() if how == "cable cut" else await server.aclose()

        async with line.run(stream(PHRASES)) as run, anyio.create_task_group() as group:
            group.start_soon(lose)
            found = await events_by_source(run)
        failed = found["voice"].pop()
        assert isinstance(failed, StageFailed)
        assert type(failed.error) is ConnectionFailed
        assert f"ws://127.0.0.1:{port}" in str(failed.error)
        buffers = sum(len(piece.pcm) > 0 for piece in found["voice"])
        assert buffers == 5 or how == "cable cut", "what was sent before the end has arrived"
        whole = await feed(VoiceStage(ToneVoice()), PHRASES)
        assert found["voice"] == whole[: len(found["voice"])]
        assert found["text"] == PHRASES
        assert found["avatar"][-1].name == "sil", "the face comes to rest all the same"
        assert len(found["prompt"]) == len(PHRASES)
        await until(lambda: script.running == 0)

        script.stall_at = None
        if how == "server ends":
            with pytest.raises(ConnectionFailed):
                await feed(stage, PHRASES)
            make = lambda: ToneVoice(script)  # noqa: E731
            await server.enter_async_context(adapter_server("voice", make, port=target))
        assert await feed(stage, PHRASES) == await feed(VoiceStage(ToneVoice()), PHRASES)


async def test_a_warm_connection_that_died_between_turns_is_replaced() -> None:
    expected = await feed(VoiceStage(ToneVoice()), PHRASES)
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(adapter_server("voice", ToneVoice))
        stage = RemoteStage(f"ws://127.0.0.1:{port}", "voice")
        assert await feed(stage, PHRASES) == expected
        await stack.aclose()
        await until(lambda: not stage._idle[0][0].usable)
        await stack.enter_async_context(adapter_server("voice", ToneVoice, port=port))
        async with stage:
            assert await feed(stage, PHRASES) == expected


async def test_what_can_be_wrong_with_an_address() -> None:
    for url in ("http://127.0.0.1:1", "127.0.0.1:1", "ws://", "ws://127.0.0.1:99999", ""):
        with pytest.raises(ConfigError, match="ws://host:port"):
            RemoteStage(url, "voice")
    for window in (0, 1025):
        with pytest.raises(ConfigError, match="from 1 to 1024"):
            RemoteStage("ws://127.0.0.1:1", "voice", window=window)
    with sockets.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = RemoteStage(f"ws://127.0.0.1:{free.getsockname()[1]}", "voice")
    with pytest.raises(ConnectionFailed, match="specstream adapter voice"):
        await nobody.connect()
    async with adapter_server("avatar", Face) as port:
        with pytest.raises(ConfigError, match="serves: avatar, not: voice"):
            await RemoteStage(f"ws://127.0.0.1:{port}", "voice").connect()

    async def chat(socket: ServerConnection) -> None:
        await socket.send("hello")
        await socket.wait_closed()

    async with listen(chat) as port:
        with pytest.raises(ProtocolError, match="doesn't speak"):
            await RemoteStage(f"ws://127.0.0.1:{port}", "voice").connect()
    async with listen(chat, subprotocols=[Subprotocol(SUBPROTOCOL)]) as port:
        with pytest.raises(ProtocolError):
            await RemoteStage(f"ws://127.0.0.1:{port}", "voice").connect()


async def test_an_address_that_takes_too_long() -> None:
    with sockets.create_server(("127.0.0.1", 0)) as silent:
        url = f"ws://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConnectionFailed, match=r"no answer in 0.01 s"):
            await feed(RemoteStage(url, "voice", connect_timeout=0.01), PHRASES)


@pytest.mark.parametrize(
    "junk",
    ["{", b"\x00" * 40, '{"type":"done"}', '{"type":"cue"}', "x" * (MAX_MESSAGE + 1)],
    ids=lambda junk: repr(junk)[:16],
)
async def test_an_adapter_that_talks_nonsense_is_hung_up_on(junk: str | bytes) -> None:
    codes: list[int | None] = []

    async def answer(socket: ServerConnection, frame: dict[str, Any]) -> None:
        if frame["type"] == "start":
            await socket.send(junk)
            await socket.wait_closed()
            codes.append(socket.close_code)

    async with impostor(answer) as port:
        stage = RemoteStage(f"ws://127.0.0.1:{port}", "voice")
        with pytest.raises(ProtocolError):
            await feed(stage, PHRASES)
        await until(lambda: bool(codes))
    assert codes[0] in (1002, 1007, 1009)


async def test_an_item_of_the_wrong_kind_is_a_typed_error() -> None:
    async with remote("voice") as stage:
        speech = (await feed(VoiceStage(ToneVoice()), PHRASES))[0]
        with pytest.raises(ProtocolError, match="holds a phrase"):
            await feed(stage, [speech])
        assert await feed(stage, PHRASES) == await feed(VoiceStage(ToneVoice()), PHRASES)


async def test_leaving_a_run_early_lets_go_of_everything() -> None:
    script = Script()
    async with pipeline(KINDS, {"voice": script}, capacity=2) as line:
        for _ in range(5):
            async with line.run(stream(PHRASES)) as run:
                async for event in run:
                    if isinstance(event.item, Speech):
                        break
            await until(lambda: script.running == 0)
        async with line.run(stream(PHRASES)) as run:
            found = await events_by_source(run)
        assert found["voice"] == await feed(VoiceStage(ToneVoice()), PHRASES)
