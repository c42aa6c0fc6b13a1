"""Parts of the tests: a transport that plays, and how a pipeline is run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pipecat.frames.frames import EndFrame, Frame, OutputAudioRawFrame, StartFrame
from pipecat.observers.base_observer import BaseObserver, FramePushed
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams
from pipecat.workers.runner import WorkerRunner

LATE_S = 0.6


class TimedOutput(BaseOutputTransport):
    """Plays at the pace of its samples (or ``times`` faster), and counts what is heard.

    ``stop_at``: once so many samples were begun, ``reached`` is set. ``late_s``: how long the first
    write of audio takes before anything is heard.
    """

    def __init__(self, *, late_s: float = 0.0, times: float = 1.0) -> None:
        super().__init__(TransportParams(audio_out_enabled=True, audio_out_end_silence_secs=0))
        self._late_s, self._times = late_s, times
        self.heard = 0  # samples, with the chunk that is being played
        self.pcm = bytearray()
        self.stop_at: int | None = None
        self.reached = asyncio.Event()

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        if not self.heard and self._late_s:
            await asyncio.sleep(self._late_s)
        samples = len(frame.audio) // 2
        self.heard += samples
        self.pcm += frame.audio
        if self.stop_at is not None and self.heard >= self.stop_at:
            self.reached.set()
        await asyncio.sleep(samples / frame.sample_rate / self._times)
        return True


class FrameWatch(BaseObserver):
    """Records what is pushed, and wakes those who wait for a frame."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[tuple[FrameProcessor, Frame]] = []
        self._news = asyncio.Event()

    async def on_push_frame(self, data: FramePushed) -> None:
        self.frames.append((data.source, data.frame))
        self._news.set()

    async def seen(self, wanted: Callable[[FrameProcessor, Frame], bool]) -> Frame:
        """The first such frame, as soon as it was pushed."""
        at = 0
        while True:
            for source, frame in self.frames[at:]:
                if wanted(source, frame):
                    return frame
            at = len(self.frames)
            self._news.clear()
            await self._news.wait()

    async def until(self, done: Callable[[], bool]) -> None:
        """Wait until ``done()``, which is asked after each frame that is pushed."""
        while not done():
            self._news.clear()
            await self._news.wait()

    def count(self, source: FrameProcessor, kind: type[Frame]) -> int:
        """How many such frames ``source`` has pushed."""
        return sum(who is source and type(frame) is kind for who, frame in self.frames)

    def of(self, kind: type[Frame]) -> list[Any]:
        """Every such frame, once each."""
        found = {id(frame): frame for _, frame in self.frames if isinstance(frame, kind)}
        return list(found.values())


@asynccontextmanager
async def running(
    processors: Sequence[FrameProcessor], watch: FrameWatch | None = None
) -> AsyncGenerator[PipelineWorker, None]:
    """Run a pipeline; at the end of the block it is told to end, and awaited."""
    worker = PipelineWorker(
        Pipeline(list(processors)),
        cancel_on_idle_timeout=False,
        enable_rtvi=False,
        observers=[watch] if watch else [],
        params=PipelineParams(
            audio_out_sample_rate=24_000, enable_metrics=True, enable_usage_metrics=True
        ),
    )
    started = asyncio.Event()

    @worker.event_handler("on_pipeline_started")
    async def _started(*_: object) -> None:
        started.set()

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    task = asyncio.create_task(runner.run())
    try:
        await started.wait()
        yield worker
        await worker.queue_frame(EndFrame())
        await task
    finally:
        if not task.done():
            await worker.cancel()
            await task


def asked(text: str, *before: dict[str, Any], tools: Any = None) -> LLMContext:
    """A context whose last message is the user's."""
    messages: list[Any] = [*before, {"role": "user", "content": text}]
    return LLMContext(messages, tools) if tools is not None else LLMContext(messages)
