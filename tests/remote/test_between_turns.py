"""Frames that an adapter sends between two turns: they belong to none, and end the connection."""

import json
import logging
from asyncio import Future
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.server import ServerConnection

from specstream.remote.channel import DialedChannel
from specstream.remote.frames import Frame, Kind, encode
from specstream.remote.stage import RemoteStage
from specstream.stages.contract import Link
from specstream.types import Cancel
from tests.server.doubles import wait_for
from tests.server.frames import SAMPLES
from tests.server.remotes import KINDS, impostor
from tests.support.standins import feed

STRAYS: Sequence[Frame | str] = [
    *(SAMPLES[name] for name in ("speech", "cue", "prompt", "flushed", "revoked", "ack", "done")),
    *(SAMPLES[name] for name in ("cancelled", "error", "ready")),
    "no frame at all",
]


class Stray:
    """An adapter that gives nothing, and sends one message too many after the first turn."""

    def __init__(self, message: Frame | str | None, loops: int = 0) -> None:
        self.sockets: list[ServerConnection] = []
        self.sent = False
        self._message = message if message is None or isinstance(message, str) else encode(message)
        self._loops = loops

    async def answer(self, socket: ServerConnection, frame: dict[str, Any]) -> None:
        if socket not in self.sockets:
            self.sockets.append(socket)
        if frame["type"] in ("end", "cancel"):
            over = "done" if frame["type"] == "end" else "cancelled"
            await socket.send(json.dumps({"type": over}))
            for _ in range(self._loops):
                await anyio.lowlevel.checkpoint()
            if not self.sent and self._message is not None:
                self.sent = True
                await socket.send(self._message)


async def cancelled_turn(stage: RemoteStage) -> list[Any]:
    link: Link[Any] = Link()
    outputs = stage.run(link)
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.lowlevel.checkpoint)
        found = []

        async def read() -> None:
            found.extend([item async for item in outputs])

        group.start_soon(read)
        await wait_for(lambda: bool(link.starved))  # the turn has begun
        link.cancel(Cancel("enough"))
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stray", STRAYS, ids=lambda stray: str(getattr(stray, "type", "text")))
async def test_a_frame_behind_the_end_of_a_turn_is_not_part_of_the_next(
    kind: Kind, stray: Frame | str, caplog: pytest.LogCaptureFixture
) -> None:
    adapter = Stray(stray)
    async with impostor(adapter.answer, kind) as stage:
        for _ in range(3):
            assert await feed(stage, []) == []
    assert len(adapter.sockets) == 2, "the first connection was dropped, the second was not"
    told = [one for one in caplog.messages if f"the {kind} adapter at ws://127.0.0.1:" in one]
    assert len(told) == (getattr(stray, "type", "") != "error")


async def never_answered(socket: ClientConnection) -> Future[float]:
    """In place of a ping."""
    return Future()


@pytest.mark.parametrize("end", ["done", "cancelled"])
@pytest.mark.parametrize("loops", [0, 1, 5])
async def test_a_frame_that_comes_while_nobody_talks(end: str, loops: int) -> None:
    adapter = Stray(SAMPLES["prompt"], loops)
    async with impostor(adapter.answer, "prompt") as stage:
        if end == "done":
            assert await feed(stage, []) == []
        else:
            assert await cancelled_turn(stage) == [Cancel("enough")]
        (channel,) = (channel for channel, _ in stage.idle)
        await wait_for(lambda: not channel.usable)
        assert await feed(stage, []) == []
    assert len(adapter.sockets) == 2


async def test_a_cancel_while_the_peer_is_asked_whether_it_is_quiet_drops_the_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    woken: list[DialedChannel] = []

    async def wake(channel: DialedChannel, patience_s: float) -> bool:
        woken.append(channel)
        return await asked(channel, patience_s)

    asked = DialedChannel.wake
    monkeypatch.setattr(DialedChannel, "wake", wake)
    monkeypatch.setattr(ClientConnection, "ping", never_answered)
    adapter = Stray(None)
    async with impostor(adapter.answer) as stage:
        assert await feed(stage, []) == []
        link: Link[Any] = Link()
        async with anyio.create_task_group() as group:

            async def cancel() -> None:
                await wait_for(lambda: bool(woken))
                link.cancel(Cancel("enough"))

            group.start_soon(cancel)
            assert [item async for item in stage.run(link)] == [Cancel("enough")]
        assert not woken[0].usable
        assert stage.idle == []
    assert not caplog.messages


@pytest.mark.virtual_time
async def test_a_peer_that_answers_no_ping_gets_no_second_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = Stray(None)
    monkeypatch.setattr(ClientConnection, "ping", never_answered)
    async with impostor(adapter.answer) as stage:
        for count in (1, 2):
            assert await feed(stage, []) == []
            assert len(adapter.sockets) == count
