"""One turn of the whole chain, or of a text that is there already, and its timing."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from dataclasses import dataclass, field

from specstream.errors import SpecstreamError
from specstream.metrics import Report
from specstream.pipeline.deadline import PlayClock
from specstream.pipeline.stage import Event, Pipeline, StageFailed
from specstream.session import Engine
from specstream.types import Chunk, Message, SamplingParams, Span, Speech
from specstream.ws.realtime.timings import FirstAudible

__all__ = ["Spoken", "Turn", "run_turn", "speak_text"]


@dataclass(slots=True, kw_only=True)
class Spoken:
    """What was spoken, and its timing in milliseconds from the beginning.

    ``ttfa_ms`` is when the first audible sample can be played.
    """

    ttfa_ms: float | None = None
    first_phrase_ms: float | None = None
    audio_seconds: float = 0.0
    failures: list[SpecstreamError] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Turn(Spoken):
    """One turn's report and timing; it begins with the request's arrival."""

    report: Report


def _ignore(event: Event) -> None:
    """Do nothing with an event."""


async def run_turn(
    engine: Engine,
    pipeline: Pipeline,
    messages: list[Message],
    params: SamplingParams,
    on_event: Callable[[Event], None] = _ignore,
    *,
    speculate: bool = True,
) -> Turn:
    """Run one turn from the prompt to the last event; ``on_event`` gets every event, in order."""
    started = time.perf_counter()
    async with engine.generate(messages, params, speculate=speculate) as chunks:
        said = await _follow(chunks, pipeline, on_event, started)
        return Turn(
            report=chunks.report,
            ttfa_ms=said.ttfa_ms,
            first_phrase_ms=said.first_phrase_ms,
            audio_seconds=said.audio_seconds,
            failures=said.failures,
        )


async def speak_text(text: str, pipeline: Pipeline, on_event: Callable[[Event], None]) -> Spoken:
    """Run ``text`` through the pipeline as if a model had written it at once, in no tokens."""

    async def written() -> AsyncGenerator[Chunk, None]:
        yield Chunk(text, (), Span(0, 0), Span(0, len(text)), finish_reason="stop")

    return await _follow(written(), pipeline, on_event, time.perf_counter())


async def _follow(
    chunks: AsyncIterable[Chunk],
    pipeline: Pipeline,
    on_event: Callable[[Event], None],
    started: float,
) -> Spoken:
    """Follow a turn's events to the last one; ``started`` is when it began."""
    said, audible, listener = Spoken(), FirstAudible(), PlayClock()
    async with pipeline.run(chunks) as events:
        events.heard(lambda: listener.heard_s)
        async for event in events:
            now = (time.perf_counter() - started) * 1e3
            if isinstance(event.item, StageFailed):
                said.failures.append(event.item.error)
            elif isinstance(event.item, Speech):
                speech = event.item
                listener.put(speech)
                audible.add(speech.samples.start, speech.sample_rate, speech.pcm, now)
                if speech.pcm:
                    said.audio_seconds = speech.samples.end / speech.sample_rate
            elif event.source == "text" and said.first_phrase_ms is None:
                said.first_phrase_ms = now
            on_event(event)
    said.ttfa_ms = audible.ttfa_ms
    return said
