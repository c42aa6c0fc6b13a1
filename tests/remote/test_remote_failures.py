"""Adapters behind their own sockets: typed errors when things go wrong."""

import socket as sockets
from contextlib import AsyncExitStack
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from websockets.asyncio.server import ServerConnection
from websockets.typing import Subprotocol

from specstream.errors import (
    AdapterFailed,
    AdapterUnavailable,
    ConfigError,
    ConnectionFailed,
    ProtocolError,
)
from specstream.remote.frames import MAX_MESSAGE, SUBPROTOCOL, Kind
from specstream.remote.server import adapter_server
from specstream.remote.stage import RemoteStage
from specstream.stages.pipeline import Pipeline, StageFailed
from specstream.stages.stages import AvatarStage, PromptStage
from specstream.types import Speech
from tests.server.doubles import wait_for
from tests.server.remotes import KINDS, PHRASES, Cable, at, impostor, pipeline, remote, spoken
from tests.support.sockets import listen
from tests.support.standins import Board, Face, Relay, Script, ToneVoice, events_by_source, feed, stream


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
                assert not [f for f in (await events_by_source(run))[kind] if isinstance(f, StageFailed)]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0]["text"] == PHRASES


@pytest.mark.parametrize("how", ["cable cut", "cable frozen", "server ends"])
async def test_a_connection_lost_in_the_middle_of_a_turn(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "cable frozen":
        monkeypatch.setattr("specstream.remote.stage._PING_S", 0.05)
        monkeypatch.setattr("specstream.remote.stage._PONG_S", 0.05)
    script = Script(stall_at=5)
    async with AsyncExitStack() as stack, AsyncExitStack() as server:
        target = await server.enter_async_context(adapter_server("voice", lambda: ToneVoice(script)))
        cable = Cable(target)
        port = await stack.enter_async_context(cable.plugged())
        stage = await stack.enter_async_context(at(port))
        line = Pipeline([[stage, AvatarStage(Face())], [PromptStage(Board())]], head=Relay())

        async def lose() -> None:
            await script.stalled.wait()
            cable.frozen = how == "cable frozen"
            if how == "cable cut":
                cable.cut()
            elif how == "server ends":
                await server.aclose()

        async with line.run(stream(PHRASES)) as run, anyio.create_task_group() as group:
            group.start_soon(lose)
            found = await events_by_source(run)
        failed = found["voice"].pop()
        assert isinstance(failed, StageFailed)
        if how != "server ends":
            assert type(failed.error) is ConnectionFailed
            assert f"ws://127.0.0.1:{port}" in str(failed.error)
        else:
            assert type(failed.error) is AdapterUnavailable
            assert "stopping" in str(failed.error)
        buffers = sum(len(piece.pcm) > 0 for piece in found["voice"])
        assert buffers == 5 or how != "server ends", "what was sent before the end has arrived"
        whole = await spoken(PHRASES)
        assert found["voice"] == whole[: len(found["voice"])]
        assert found["text"] == PHRASES
        assert found["avatar"][-1].name == "sil", "the face comes to rest all the same"
        assert len(found["prompt"]) == len(PHRASES)
        await wait_for(lambda: script.running == 0)

        script.stall_at, cable.frozen = None, False
        if how == "server ends":
            with pytest.raises(ConnectionFailed):
                await feed(stage, PHRASES)
            make = lambda: ToneVoice(script)  # noqa: E731
            await server.enter_async_context(adapter_server("voice", make, port=target))
        assert await feed(stage, PHRASES) == await spoken(PHRASES)


async def test_a_warm_connection_that_died_between_turns_is_replaced() -> None:
    expected = await spoken(PHRASES)
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(adapter_server("voice", ToneVoice))
        stage = at(port)
        assert await feed(stage, PHRASES) == expected
        await stack.aclose()
        await wait_for(lambda: not stage.idle[0][0].usable)
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
        nobody = at(free.getsockname()[1])
    with pytest.raises(ConnectionFailed, match="specstream adapter voice"):
        await nobody.connect()
    async with adapter_server("avatar", Face) as port:
        with pytest.raises(ConfigError, match="serves: avatar, not: voice"):
            await at(port).connect()

    async def chat(socket: ServerConnection) -> None:
        await socket.send("hello")
        await socket.wait_closed()

    async with listen(chat) as port:
        with pytest.raises(ProtocolError, match="doesn't speak"):
            await at(port).connect()
    async with listen(chat, subprotocols=[Subprotocol(SUBPROTOCOL)]) as port:
        with pytest.raises(ProtocolError, match=f"the voice adapter at .*:{port}: frame: "):
            await at(port).connect()


async def test_an_address_that_takes_too_long() -> None:
    with sockets.create_server(("127.0.0.1", 0)) as silent:
        url = f"ws://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConnectionFailed, match=r"no answer in 0.01 s"):
            await feed(RemoteStage(url, "voice", connect_timeout=0.01), PHRASES)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"url": None}, "None isn't an address"),
        ({"kind": "voic"}, "kind must be one of voice, avatar, prompt, not 'voic'"),
        ({"window": "8"}, "window must be a number from 1 to 1024, not '8'"),
        ({"connect_timeout": "5"}, "connect_timeout must be a number from 0 on, not '5'"),
        ({"cancel_timeout": -1}, "cancel_timeout must be a number from 0 on, not -1"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RemoteStage(**{"url": "ws://h:1", "kind": "voice", **given})


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

    async with impostor(answer) as stage:
        with pytest.raises(ProtocolError, match=f"the voice adapter at {stage.url}: "):
            await feed(stage, PHRASES)
        await wait_for(lambda: bool(codes))
    assert codes[0] in (1002, 1007, 1009)


async def test_an_item_of_the_wrong_kind_is_a_typed_error() -> None:
    async with remote("voice") as stage:
        speech = (await spoken(PHRASES))[0]
        with pytest.raises(ProtocolError, match="holds a phrase"):
            await feed(stage, [speech])
        assert await feed(stage, PHRASES) == await spoken(PHRASES)


async def test_leaving_a_run_early_lets_go_of_everything() -> None:
    script = Script()
    async with pipeline(KINDS, {"voice": script}, capacity=2) as line:
        for _ in range(5):
            async with line.run(stream(PHRASES)) as run:
                async for event in run:
                    if isinstance(event.item, Speech):
                        break
            await wait_for(lambda: script.running == 0)
        async with line.run(stream(PHRASES)) as run:
            found = await events_by_source(run)
        assert found["voice"] == await spoken(PHRASES)
