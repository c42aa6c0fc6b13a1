"""The whole chain of one turn: text, voice, avatar and scene prompts, with its timing."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specstream.commands.output import note
from specstream.errors import AdapterUnavailable, SpecstreamError
from specstream.metrics import Report
from specstream.pipeline.adapters import AdapterKind, load_adapter
from specstream.pipeline.interfaces import SpeechSynthesizer
from specstream.pipeline.stage import Event, Pipeline, StageFailed
from specstream.pipeline.stages import AvatarStage, PromptStage, SegmentStage, VoiceStage
from specstream.session import Engine
from specstream.types import Message, SamplingParams, Speech
from specstream.ws.stage.remote import RemoteStage

__all__ = ["Turn", "load_voice", "open_pipeline", "run_turn", "stage_or_adapter"]

AUDIBLE = 0.01
"""A sample is audible from 1 % of full scale (-40 dBFS)."""


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
    """A voice by adapter name; ``auto`` is espeak where it can be had, else the test voice."""
    voice: SpeechSynthesizer
    if name != "auto":
        voice = load_adapter("voice", name)
        return voice
    try:
        voice = load_adapter("voice", "espeak")
    except AdapterUnavailable as error:
        note(f"{error}; a test voice babbles instead (one sound a letter)")
        voice = load_adapter("voice", "reference")
    return voice


def stage_or_adapter(kind: AdapterKind, name: str, engine: Engine | None = None) -> Any:
    """An adapter by its name, or the remote stage at a ``ws://`` address.

    ``engine`` is passed to the prompt adapter ``model``. A remote adapter's key is read from
    ``$SPECSTREAM_ADAPTER_KEY``, since command lines are visible in the list of processes.
    """
    if name.startswith(("ws://", "wss://")):
        return RemoteStage(name, kind=kind, api_key=os.environ.get("SPECSTREAM_ADAPTER_KEY"))
    if kind == "voice":
        return load_voice(name)
    options = {"generator": engine} if (kind, name) == ("prompt", "model") else {}
    return load_adapter(kind, name, **options)


@asynccontextmanager
async def open_pipeline(
    engine: Engine, voice: str, avatar: str, prompt: str
) -> AsyncGenerator[Pipeline, None]:
    """The chain of a voice turn, each part by its name or address; the engine need not run yet.

    Leaving the block releases the voice and closes the connections.

    Raises:
        AdapterUnavailable: an adapter's name is unknown, or what it needs is missing.
        ConnectionFailed, ProtocolError, ConfigError: see `RemoteStage.connect`.
    """
    async with AsyncExitStack() as stack:

        async def stage(kind: AdapterKind, name: str, wrap: Callable[[Any], Any]) -> Any:
            made = stage_or_adapter(kind, name, engine)
            if isinstance(made, RemoteStage):
                await stack.enter_async_context(made)
                await made.connect()
                return made
            if kind == "voice":
                stack.push_async_callback(made.aclose)
            return wrap(made)

        speech = [
            await stage("voice", voice, VoiceStage),
            await stage("avatar", avatar, AvatarStage),
        ]
        yield Pipeline([speech, [await stage("prompt", prompt, PromptStage)]], head=SegmentStage())


async def run_turn(
    engine: Engine,
    pipeline: Pipeline,
    messages: list[Message],
    params: SamplingParams,
    on_event: Callable[[Event], None] = lambda event: None,
    *,
    speculate: bool = True,
) -> Turn:
    """One turn from the prompt to the last event. ``on_event`` is given every event, in order."""
    started = time.perf_counter()
    first_phrase: float | None = None
    clock = _AudibleClock()
    failures: list[SpecstreamError] = []
    async with (
        engine.generate(messages, params, speculate=speculate) as chunks,
        pipeline.run(chunks) as events,
    ):
        async for event in events:
            now = (time.perf_counter() - started) * 1e3
            if isinstance(event.item, StageFailed):
                failures.append(event.item.error)
            elif isinstance(event.item, Speech):
                clock.add(event.item, now)
            elif event.source == "text" and first_phrase is None:
                first_phrase = now
            on_event(event)
    return Turn(chunks.report, clock.ttfa_ms, first_phrase, clock.seconds, failures)


class _AudibleClock:
    """Finds when the first audible sample is played, if play-out begins with the first buffer."""

    def __init__(self) -> None:
        self.ttfa_ms: float | None = None
        self.seconds = 0.0
        self._begun_ms: float | None = None

    def add(self, speech: Speech, now_ms: float) -> None:
        if not speech.pcm:
            return
        if self._begun_ms is None:
            self._begun_ms = now_ms
        self.seconds = speech.samples.end / speech.sample_rate
        if self.ttfa_ms is None:
            samples = np.frombuffer(speech.pcm, dtype="<i2")
            loud = np.flatnonzero(np.abs(samples.astype(np.int32)) >= AUDIBLE * 32768)
            if loud.size:
                position = (speech.samples.start + int(loud[0])) / speech.sample_rate * 1e3
                self.ttfa_ms = max(self._begun_ms + position, now_ms)
