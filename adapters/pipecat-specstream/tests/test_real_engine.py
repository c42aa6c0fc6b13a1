"""The language model's service with the bundled models."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from pipecat.frames.frames import (
    EagerEndOfTurnCancelFrame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMTextFrame,
    MetricsFrame,
    UserStoppedSpeakingFrame,
)
from pipecat.metrics.metrics import LLMUsageMetricsData
from pipecat_specstream import SpecstreamLLMService, SpecstreamLLMSettings
from specstream import Engine
from support import FrameWatch, asked, running

LONG = "Tell me a story about a fox and a bird."


@pytest.fixture
async def engine():
    async with Engine.load() as engine:
        yield engine


class Noting:
    """An engine that keeps the replies it was asked for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.replies: list[Any] = []
        self.references: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @asynccontextmanager
    async def generate(self, *args: Any, **options: Any) -> AsyncGenerator[Any, None]:
        async with self._engine.generate(*args, **options) as reply:
            self.replies.append(reply)
            self.references.append(options.get("reference", ""))
            yield reply


async def test_an_interruption_stops_the_decoding(engine):
    engine = Noting(engine)
    settings = SpecstreamLLMSettings(temperature=0.0, max_tokens=400)
    service, watch = SpecstreamLLMService(engine=engine, settings=settings), FrameWatch()
    async with running([service], watch) as worker:
        await worker.queue_frame(LLMContextFrame(asked(LONG)))
        await watch.until(lambda: len(watch.of(LLMTextFrame)) == 2)
        await worker.queue_frame(InterruptionFrame())
        await watch.seen(lambda who, f: who is service and isinstance(f, InterruptionFrame))
        rounds = engine.replies[0].report.rounds
        await engine.complete([{"role": "user", "content": "Hello"}], max_tokens=8)
        report = engine.replies[0].report
        assert report.finish_reason == "cancelled" and report.rounds <= rounds + 1
        assert not watch.of(LLMFullResponseEndFrame)
        await worker.queue_frame(LLMContextFrame(asked(LONG)))
        await watch.until(lambda: len(watch.of(LLMFullResponseEndFrame)) == 1)
    first, second = usages(watch)
    assert first.completion_tokens < second.completion_tokens
    assert second.cache_read_input_tokens > 0  # the conversation's cache


async def test_a_guess_that_is_withdrawn_while_it_is_written(engine):
    engine = Noting(engine)
    settings = SpecstreamLLMSettings(temperature=0.0, max_tokens=200)
    service, watch = SpecstreamLLMService(engine=engine, settings=settings), FrameWatch()
    async with running([service], watch) as worker:
        await worker.queue_frame(LLMContextFrame(asked(LONG[:-1]), speculation=True))
        while not engine.replies or engine.replies[0].report.rounds < 2:
            await anyio.lowlevel.checkpoint()  # nothing is pushed while the answer is held back
        await worker.queue_frame(EagerEndOfTurnCancelFrame())
        await watch.seen(lambda who, f: who is service and isinstance(f, EagerEndOfTurnCancelFrame))
        await worker.queue_frame(UserStoppedSpeakingFrame())
        await worker.queue_frame(LLMContextFrame(asked(LONG)))
        await watch.until(lambda: len(watch.of(LLMFullResponseEndFrame)) == 1)
    async with engine.generate(LONG, service.settings.sampling(engine.manner.params)) as reply:
        plain = "".join([chunk.text async for chunk in reply])
    guess = engine.replies[0]
    assert guess.report.finish_reason == "cancelled"
    _, reference, *_ = engine.references
    assert reference and guess.text.startswith(reference)  # the round under way may come after it
    assert "".join(frame.text for frame in watch.of(LLMTextFrame)) == plain


async def test_an_answer_of_a_schema(engine):
    service = SpecstreamLLMService(engine=engine)
    schema = {
        "type": "object",
        "properties": {"table": {"enum": ["window", "garden"]}},
        "required": ["table"],
        "additionalProperties": False,
    }
    said = await service.run_inference(asked("A table?"), max_tokens=24, response_schema=schema)
    assert json.loads(said)["table"] in ("window", "garden")


def usages(watch: FrameWatch) -> list:
    data = [each for frame in watch.of(MetricsFrame) for each in frame.data]
    return [each.value for each in data if isinstance(each, LLMUsageMetricsData)]
