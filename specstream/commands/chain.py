"""The whole chain of one turn (text, voice, avatar and scene prompts) and its timing."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from specstream.commands.output import note
from specstream.errors import SpecstreamError
from specstream.metrics import Report
from specstream.pipeline.adapters import AdapterKind, default_voice, load_adapter, stage_of
from specstream.pipeline.deadline import PlayClock
from specstream.pipeline.interfaces import SpeechSynthesizer
from specstream.pipeline.stage import Event, Pipeline, Stage, StageFailed
from specstream.pipeline.stages import SegmentStage
from specstream.session import Engine
from specstream.types import Message, SamplingParams, Speech
from specstream.ws.realtime.timings import FirstAudible
from specstream.ws.stage.remote import RemoteStage

__all__ = ["Turn", "load_voice", "open_pipeline", "run_turn", "stage_or_adapter"]


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


def load_voice(name: str) -> SpeechSynthesizer:
    """Load a voice by adapter name; ``auto`` is `default_voice`.

    A note tells where ``auto`` gives a test voice, and where an installed voice is broken.
    """
    if name != "auto":
        voice: SpeechSynthesizer = load_adapter("voice", name)
        return voice
    chosen = default_voice()
    if chosen.announcement:
        note(chosen.announcement)
    return chosen.voice


def stage_or_adapter(kind: AdapterKind, name: str, engine: Engine | None = None) -> Any:
    """Load an adapter by its name, or make the remote stage of a ``ws://`` address.

    ``engine`` is passed to the prompt adapter ``model``; an avatar's name may be followed by a rig, as
    in ``viseme=vrm``. A remote adapter's key is read from ``$SPECSTREAM_ADAPTER_KEY``, since command
    lines are visible in the list of processes.
    """
    if name.startswith(("ws://", "wss://")):
        return RemoteStage(name, kind=kind, api_key=os.environ.get("SPECSTREAM_ADAPTER_KEY"))
    if kind == "voice":
        return load_voice(name)
    options: dict[str, Any] = {"generator": engine} if (kind, name) == ("prompt", "model") else {}
    if kind == "avatar" and "=" in name:
        name, _, options["rig"] = name.partition("=")
    return load_adapter(kind, name, **options)


@asynccontextmanager
async def open_pipeline(
    engine: Engine, voice: str, avatar: str, prompt: str
) -> AsyncGenerator[Pipeline, None]:
    """Open the pipeline of a voice turn, each part by its name or address; the engine need not run yet.

    Leaving the block releases the voice and closes the connections.

    Raises:
        AdapterUnavailable: an adapter's name is unknown, or what it needs is missing.
        ConnectionFailed, ProtocolError, ConfigError: see `RemoteStage.connect`.
    """
    async with AsyncExitStack() as stack:

        async def stage(kind: AdapterKind, name: str) -> Stage[Any, Any]:
            made = stage_or_adapter(kind, name, engine)
            if isinstance(made, RemoteStage):
                await stack.enter_async_context(made)
                await made.connect()
            elif kind == "voice":
                stack.push_async_callback(made.aclose)
            return stage_of(kind, made)

        speech = [await stage("voice", voice), await stage("avatar", avatar)]
        yield Pipeline([speech, [await stage("prompt", prompt)]], head=SegmentStage(lookahead=True))


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
