"""What a cancel reaches, and what only looks like one."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from specstream.errors import AdapterFailed
from specstream.stages.contract import Inlet
from specstream.stages.pipeline import Event, Pipeline, Run, StageFailed
from specstream.testing import ScriptedEngine
from specstream.types import Cancel
from tests.support.standins import cancelled

TEXT = "one two three four five six seven eight"


class Relay:
    """Passes everything on."""

    name = "relay"

    async def run(self, items: Inlet[Any]) -> AsyncGenerator[Any, None]:
        async for item in items:
            yield item


class Endless(Relay):
    """Goes on after it has answered the cancel."""

    name = "endless"

    async def run(self, items: Inlet[Any]) -> AsyncGenerator[Any, None]:
        async for item in items:
            yield item
            while isinstance(item, Cancel):
                await asyncio.sleep(0)
                yield "more"


class AwaitsTheCancelled(Relay):
    """Waits for a future that somebody else has cancelled."""

    name = "victim"

    async def run(self, items: Inlet[Any]) -> AsyncGenerator[Any, None]:
        async for item in items:
            gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            gone.cancel()
            await gone
            yield item


async def events_of(run: Run) -> list[Event]:
    return [event async for event in run]


async def test_cancelling_the_run_stops_the_token_stream() -> None:
    engine = ScriptedEngine([TEXT])
    pipeline = Pipeline([[Relay()]], head=Relay())
    async with engine.generate("x") as chunks, pipeline.run(chunks) as run:
        await anext(run)
        run.cancel()
        await events_of(run)
        assert chunks.report.finish_reason == "cancelled"
        assert len(chunks.text) < len(TEXT)


async def test_a_stage_is_not_heard_after_its_answer_to_the_cancel() -> None:
    engine = ScriptedEngine([TEXT])
    pipeline = Pipeline([[Endless()]], head=Relay())
    async with engine.generate("x") as chunks, pipeline.run(chunks) as run:
        await anext(run)
        run.cancel()
        assert "more" not in [event.item for event in await events_of(run)]


async def test_something_cancelled_from_elsewhere_is_a_failure_of_that_stage_only() -> None:
    engine = ScriptedEngine([TEXT])
    pipeline = Pipeline([[AwaitsTheCancelled()], [Relay()]], head=Relay())
    async with engine.generate("x") as chunks, pipeline.run(chunks) as run:
        events = await events_of(run)
    failures = [event.item for event in events if isinstance(event.item, StageFailed)]
    assert len(failures) == 1
    assert isinstance(failures[0].error, AdapterFailed)
    relayed = [event for event in events if event.source == "relay"]
    assert len(relayed) == 2 * len([event for event in events if event.source == "engine"])


async def test_a_token_stream_cancelled_from_elsewhere_has_failed() -> None:
    async def chunks() -> AsyncGenerator[Any, None]:
        yield "one"
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gone.cancel()
        await gone

    async with Pipeline([[Relay()]], head=Relay()).run(chunks()) as run:
        with pytest.raises(AdapterFailed, match="waited for something that was cancelled"):
            await events_of(run)
    assert run.broken


@pytest.mark.parametrize("steps", range(8))
async def test_a_cancel_while_the_block_is_left_is_not_lost(steps: int) -> None:
    """By asyncio, one step of the loop after another, as `asyncio.timeout` does."""
    leaving = asyncio.Event()

    async def work() -> None:
        pipeline = Pipeline([[Relay()]], head=Relay())
        async with ScriptedEngine([TEXT]).generate("x") as chunks, pipeline.run(chunks) as run:
            await anext(run)
            leaving.set()
        await asyncio.sleep(1)

    task = await cancelled(work(), leaving, steps)
    assert task.cancelled()
