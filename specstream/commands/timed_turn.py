"""One turn of the whole chain, and its timing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from specstream.errors import SpecstreamError
from specstream.metrics import Report
from specstream.pipeline.deadline import PlayClock
from specstream.pipeline.stage import Event, Pipeline, StageFailed
from specstream.session import Engine
from specstream.types import Message, SamplingParams, Speech
from specstream.ws.realtime.timings import FirstAudible

__all__ = ["Turn", "run_turn"]


@dataclass(slots=True)
class Turn:
    """One turn's report and timing, in milliseconds from the request's arrival.

    ``ttfa_ms`` is when the first audible sample can be played.
    """

    report: Report
    ttfa_ms: float | None = None
    first_phrase_ms: float | None = None
    audio_seconds: float = 0.0
    failures: list[SpecstreamError] = field(default_factory=list)


async def run_turn(
    engine: Engine,
    pipeline: Pipeline,
    messages: list[Message],
    params: SamplingParams,
    on_event: Callable[[Event], None] = lambda event: None,
    *,
    speculate: bool = True,
) -> Turn:
    """Run one turn from the prompt to the last event; ``on_event`` gets every event, in order."""
    started = time.perf_counter()
    first_phrase: float | None = None
    audible, seconds, listener = FirstAudible(), 0.0, PlayClock()
    failures: list[SpecstreamError] = []
    async with (
        engine.generate(messages, params, speculate=speculate) as chunks,
        pipeline.run(chunks) as events,
    ):
        events.heard(lambda: listener.heard_s)
        async for event in events:
            now = (time.perf_counter() - started) * 1e3
            if isinstance(event.item, StageFailed):
                failures.append(event.item.error)
            elif isinstance(event.item, Speech):
                speech = event.item
                listener.put(speech)
                audible.add(speech.samples.start, speech.sample_rate, speech.pcm, now)
                if speech.pcm:
                    seconds = speech.samples.end / speech.sample_rate
            elif event.source == "text" and first_phrase is None:
                first_phrase = now
            on_event(event)
    return Turn(chunks.report, audible.ttfa_ms, first_phrase, seconds, failures)
