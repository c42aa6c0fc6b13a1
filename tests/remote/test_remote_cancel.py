"""A turn that is cancelled, with adapters behind their own sockets."""

import asyncio
import random
import socket as sockets
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from websockets.asyncio.server import ServerConnection

from specstream.remote.frames import Kind
from specstream.stages.contract import Link
from specstream.stages.pipeline import StageFailed
from specstream.types import AvatarCue, Cancel
from tests.server.remotes import (
    KINDS,
    LAYOUTS,
    LOCAL,
    MAKE,
    PHRASES,
    at,
    impostor,
    pipeline,
    remote,
    spoken,
    unnumbered,
)
from tests.support.standins import Script, events_by_source, feed, stream


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["stalled", "between"])
async def test_a_cancel_in_the_middle_of_a_turn(kind: Kind, where: str) -> None:
    """Everything after the cancel is the rest, then the Cancel; the connection stays good."""
    inputs: dict[Kind, list[Any]] = {
        "voice": list(PHRASES),
        "avatar": await spoken(PHRASES),
        "prompt": list(PHRASES),
    }
    script = Script(stall_at=2 if where == "stalled" and kind != "avatar" else None)
    async with remote(kind, script) as stage:
        link: Link[Any] = Link(1024)
        for item in inputs[kind]:
            await link.send(item)
        outputs = stage.run(link)
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


async def unfinished() -> AsyncGenerator[Any, None]:
    """A text that doesn't end, so that no stage can have ended either."""
    async for chunk in stream(PHRASES):
        yield chunk
    await anyio.sleep_forever()


@pytest.mark.parametrize("remotes", LAYOUTS, ids=lambda kinds: "+".join(kinds) or "local")
@pytest.mark.parametrize("stalling", KINDS)
async def test_a_cancelled_pipeline_comes_to_rest(remotes: Sequence[Kind], stalling: Kind) -> None:
    scripts: dict[Kind, Script] = {kind: Script() for kind in KINDS}
    scripts[stalling].stall_at = 3
    stop = 3 if stalling == "avatar" else None  # pure computation can't stall: cancel at once
    async with pipeline(remotes, scripts) as line:
        async with line.run(unfinished()) as run:
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
        assert found["voice"] == await spoken(PHRASES)


@pytest.mark.parametrize("seed", range(40))
async def test_cancels_at_any_moment(seed: int) -> None:
    """Whenever it comes, the turn ends with one Cancel or was over, and the next is whole."""
    rng = random.Random(seed)
    kind = rng.choice(KINDS)
    items: list[Any] = list(PHRASES[:4])
    if kind == "avatar":
        items = await spoken(items)
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
                found = [output async for output in stage.run(link)]
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
        stage = at(silent.getsockname()[1])
        link: Link[Any] = Link()

        async def cancel() -> None:
            with anyio.fail_after(20):
                accepted, _ = await asyncio.get_running_loop().sock_accept(silent)
            with accepted:
                link.cancel(Cancel("never mind"))

        silent.setblocking(False)
        async with anyio.create_task_group() as group:
            group.start_soon(cancel)
            assert [item async for item in stage.run(link)] == [Cancel("never mind")]


async def test_an_adapter_that_never_answers_a_cancel_is_left() -> None:
    async def ignore(socket: ServerConnection, frame: dict[str, Any]) -> None:
        if frame["type"] == "end":
            link.cancel(Cancel("enough"))

    async with impostor(ignore, cancel_timeout=0.0) as stage:
        link: Link[Any] = Link()
        link.close()
        assert [item async for item in stage.run(link)] == [Cancel("enough")]
        assert stage.idle == []
