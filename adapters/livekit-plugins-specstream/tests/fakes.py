"""A fake loudspeaker, microphone and session: AgentSession without a room."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from livekit import rtc
from livekit.agents import Agent, AgentSession, stt
from livekit.agents.language import LanguageCode
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT, TimedString
from livekit.agents.voice import io
from livekit.agents.voice.transcription.synchronizer import TranscriptSynchronizer

from livekit.plugins.specstream import HeardWords

SLICE_S = 0.01


class RoomSpeaker(io.AudioOutput):
    """Plays at the pace of speech, counted in samples; ``late_s`` passes before it begins."""

    def __init__(self, *, late_s: float = 0.0, paced: bool = True) -> None:
        super().__init__(label="fake", capabilities=io.AudioOutputCapabilities(pause=False))
        self._late_s, self._paced = late_s, paced
        self._frames: asyncio.Queue[rtc.AudioFrame | None] = asyncio.Queue()
        self._playing: asyncio.Task[None] | None = None
        self._moved = asyncio.Condition()
        self.played_s = 0.0  # of the latest segment
        self.words: list[TimedString] = []  # of the latest segment
        self.pcm = bytearray()

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        if self._playing is None:
            self.played_s, self.words = 0.0, []
            self._playing = asyncio.create_task(self._play())
        self.words += frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, [])
        self.pcm += bytes(frame.data)
        self._frames.put_nowait(frame)

    def flush(self) -> None:
        super().flush()
        if self._playing is not None:
            self._frames.put_nowait(None)

    def clear_buffer(self) -> None:
        if self._playing is not None:
            self._playing.cancel()
            self._end(interrupted=True)

    async def _play(self) -> None:
        if self._late_s:
            await asyncio.sleep(self._late_s)
        began, sound = time.time(), 0.0
        self.on_playback_started(created_at=began)
        while (frame := await self._frames.get()) is not None:
            left = frame.duration
            while left > 1e-9:
                step = min(SLICE_S, left)
                left, sound = left - step, sound + step
                if self._paced:
                    await asyncio.sleep(max(0.0, began + sound - time.time()))
                self.played_s += step
                async with self._moved:
                    self._moved.notify_all()
        self._end(interrupted=False)

    def _end(self, *, interrupted: bool) -> None:
        self._playing, self._frames = None, asyncio.Queue()
        self.on_playback_finished(playback_position=self.played_s, interrupted=interrupted)

    async def reached(self, seconds: float) -> None:
        """Wait until so much was played."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.played_s >= seconds)

    def heard(self) -> list[str]:
        """The words of the text up to the last one of which at least half was played."""
        text = ""
        for at, word in enumerate(self.words):
            middle = (float(word.start_time or 0) + float(word.end_time or 0)) / 2
            if middle <= self.played_s:
                text = "".join(self.words[: at + 1])
        return text.split()


class WaitingSpeaker(RoomSpeaker):
    """Takes no frame before somebody subscribes, as a room's output does."""

    def __init__(self) -> None:
        super().__init__(paced=False)
        self.asked, self.subscribed = asyncio.Event(), asyncio.Event()

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        self.asked.set()
        await self.subscribed.wait()
        await super().capture_frame(frame)


class RoomTranscript(io.TextOutput):
    """Collects the text that goes to the user's screen."""

    def __init__(self) -> None:
        super().__init__(label="fake", next_in_chain=None)
        self.text = ""

    async def capture_text(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        """Nothing waits."""


class RoomInput(io.AudioInput):
    """Gives pushed audio, in frames of 20 ms."""

    def __init__(self, sample_rate: int = 16_000) -> None:
        super().__init__(label="fake")
        self._rate = sample_rate
        self._frames: asyncio.Queue[rtc.AudioFrame] = asyncio.Queue()

    async def __anext__(self) -> rtc.AudioFrame:
        return await self._frames.get()

    def push(self, ms: int, sample: int) -> None:
        for frame in frames(ms, sample, self._rate):
            self._frames.put_nowait(frame)


def frames(ms: int, sample: int, rate: int = 16_000) -> list[rtc.AudioFrame]:
    """Audio of one value, in frames of 20 ms."""
    size = rate // 50
    pcm = sample.to_bytes(2, "little", signed=True) * size
    return [rtc.AudioFrame(pcm, rate, 1, size) for _ in range(ms // 20)]


@asynccontextmanager
async def running(
    agent: Agent,
    *,
    loudspeaker: RoomSpeaker | None = None,
    microphone: RoomInput | None = None,
    **options: Any,
) -> AsyncIterator[AgentSession[Any]]:
    """A session without a room, whose outputs go through LiveKit's synchronizer."""
    options = {"vad": None, "turn_handling": {"turn_detection": None}} | options
    synchronizer = None
    async with AgentSession[Any](use_tts_aligned_transcript=True, **options) as session:
        if loudspeaker is not None:
            synchronizer = TranscriptSynchronizer(
                next_in_chain_audio=loudspeaker, next_in_chain_text=RoomTranscript()
            )
            session.output.audio = synchronizer.audio_output
            session.output.transcription = synchronizer.text_output
        if microphone is not None:
            session.input.audio = microphone
        await session.start(agent)
        if loudspeaker is not None:
            session.output.audio = HeardWords(session.output.audio)
        try:
            yield session
        finally:
            await session.aclose()
            if synchronizer is not None:
                await synchronizer.aclose()


def said(session: AgentSession[Any]) -> list[str]:
    """The assistant's messages in the history."""
    return [
        item.text_content or ""
        for item in session.history.items
        if item.type == "message" and item.role == "assistant"
    ]


class ToldSTT(stt.STT[Any]):
    """A recogniser whose events the test sends."""

    def __init__(self) -> None:
        super().__init__(capabilities=stt.STTCapabilities(streaming=True, interim_results=True))
        self._told: asyncio.Queue[stt.SpeechEvent] = asyncio.Queue()

    def tell(self, kind: stt.SpeechEventType, text: str = "") -> None:
        data = [stt.SpeechData(LanguageCode("en"), text)] if text else []
        self._told.put_nowait(stt.SpeechEvent(kind, alternatives=data))

    def stream(self, **options: Any) -> stt.RecognizeStream:
        return _ToldStream(self, events=self._told, conn_options=options["conn_options"])

    async def _recognize_impl(self, *_: Any, **__: Any) -> stt.SpeechEvent:
        raise AssertionError("it streams")


class _ToldStream(stt.RecognizeStream):
    def __init__(
        self, service: ToldSTT, *, events: asyncio.Queue[stt.SpeechEvent], conn_options: Any
    ) -> None:
        super().__init__(stt=service, conn_options=conn_options)
        self._events = events

    async def _run(self) -> None:
        while True:
            self._event_ch.send_nowait(await self._events.get())
