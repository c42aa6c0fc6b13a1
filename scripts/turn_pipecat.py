"""The arm of Pipecat in `turn_beside_pipecat`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.frames.frames import (
    EndFrame,
    Frame,
    InputAudioRawFrame,
    InterruptionFrame,
    OutputAudioRawFrame,
    StartFrame,
    TTSAudioRawFrame,
)
from pipecat.pipeline.pipeline import Pipeline as PipecatPipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.openai.stt import OpenAISTTService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TTSService
from pipecat.transports.base_input import BaseInputTransport
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams
from pipecat.turns.user_turn_strategies import UserTurnStrategies
from pipecat.workers.runner import WorkerRunner
from turn_arms import MIC, OUT, Loudspeaker, ReplyWord, rest, speech, spoken, word_marks, words_of


class PieceInput(BaseInputTransport):
    """Gives a Pipecat pipeline what it is given."""

    async def start(self, frame: StartFrame) -> None:
        """Begin."""
        await super().start(frame)
        await self.set_transport_ready(frame)


class PieceOutput(BaseOutputTransport):
    """Plays at the pace of its samples: each write returns when its audio has been heard."""

    def __init__(self, params: TransportParams, speaker: Loudspeaker) -> None:
        super().__init__(params)
        self.speaker = speaker
        self.stopped: float | None = None

    async def start(self, frame: StartFrame) -> None:
        """Begin."""
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Note when a reply is interrupted."""
        await super().process_frame(frame, direction)
        if isinstance(frame, InterruptionFrame) and self.speaker.pieces and self.stopped is None:
            self.stopped = anyio.current_time()

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        """Play audio."""
        assert frame.sample_rate == OUT and frame.num_channels == 1
        self.speaker.write(frame.audio)
        await anyio.sleep_until(self.speaker.until)
        return True


class SpokenNotes(TTSService):
    """Notes the texts that a voice of Pipecat is given, and when."""

    def begin(self) -> None:
        """Before a new conversation."""
        self.said: list[str] = []
        self.first_text: float | None = None
        self.first_speech: float | None = None

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """See Pipecat."""
        self.said.append(text)
        self.first_text = self.first_text or anyio.current_time()
        async for frame in super().run_tts(text, context_id):
            if getattr(frame, "audio", b""):
                self.first_speech = self.first_speech or anyio.current_time()
            yield frame


class TimedVoice(TTSService):
    """A voice in this process that times its words, in the way that Pipecat documents.

    Like its services for Hume and Cartesia: words go to `add_word_timestamps`, in seconds of the reply,
    and Pipecat writes them into the context when the clock has come so far.
    """

    def __init__(self, voice: Any) -> None:
        super().__init__(
            push_text_frames=False,
            push_start_frame=True,
            push_stop_frames=True,
            settings=TTSSettings(model=None, voice="hibari", language=None),
        )
        self.voice = voice
        self.spoken_s = ("", 0.0)  # of the latest context

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """See Pipecat."""
        latest, begun = self.spoken_s
        begun = begun if latest == context_id else 0.0
        made, timed, marks = 0, 0, list[Any]()
        async for piece in speech(self.voice, text):
            marks += word_marks(piece)
            words = words_of(text, marks)[timed:]
            times = [(word.text, begun + word.start / OUT) for word in words]
            yield TTSAudioRawFrame(piece.pcm, OUT, 1, context_id=context_id)
            await self.add_word_timestamps(times, context_id)
            timed, made = timed + len(words), made + len(piece.pcm) // 2
            self.spoken_s = context_id, begun + made / OUT


class NotedVoice(SpokenNotes, OpenAITTSService):
    """Pipecat's own voice at a server; it doesn't time words."""


class NotedTimedVoice(SpokenNotes, TimedVoice):
    """The voice with word times."""


class PipecatArm:
    """Pipecat's own services at a server's address, if need be with a voice that times its words."""

    def __init__(
        self,
        name: str,
        base: str,
        system: str,
        strategies: UserTurnStrategies | None,
        voice: Any,
        timed: bool,
    ) -> None:
        self.name, self.voice = name, voice
        self.speaker = Loudspeaker()
        served: dict[str, Any] = {"base_url": base, "api_key": "none"}
        self.context = LLMContext()
        vad = SileroVADAnalyzer()
        user = LLMUserAggregatorParams(vad_analyzer=vad, user_turn_strategies=strategies)
        pair = LLMContextAggregatorPair(self.context, user_params=user)
        params = TransportParams(audio_in_enabled=True, audio_out_enabled=True)
        self.microphone, self.output = PieceInput(params), PieceOutput(params, self.speaker)
        settings = OpenAILLMService.Settings(model="smollm2", system_instruction=system)
        self.tts: SpokenNotes = NotedTimedVoice(voice)
        if not timed:
            self.tts = NotedVoice(**served, settings=OpenAITTSService.Settings(model="smollm2"))
        stt = OpenAISTTService(**served, settings=OpenAISTTService.Settings(model="smollm2"))
        parts = [
            self.microphone,
            stt,
            pair.user(),
            OpenAILLMService(**served, settings=settings),
            self.tts,
            self.output,
            pair.assistant(),
        ]
        pipeline = PipecatPipeline(parts)
        self.worker = PipelineWorker(pipeline, cancel_on_idle_timeout=False, enable_rtvi=False)
        self.turn_over: float | None = None

        async def over(*_: object) -> None:
            if self.turn_over is None or not self.tts.said:
                self.turn_over = anyio.current_time()

        pair.user().add_event_handler("on_user_turn_stopped", over)
        self.begin()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Run the pipeline."""
        started = asyncio.Event()

        async def begun(*_: object) -> None:
            started.set()

        self.worker.add_event_handler("on_pipeline_started", begun)
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(self.worker)
        task = asyncio.create_task(runner.run())
        await started.wait()
        try:
            yield
        finally:
            await self.worker.queue_frame(EndFrame())
            await task

    def begin(self) -> None:
        """Before a new conversation."""
        self.tts.begin()
        self.output.stopped = self.turn_over = None

    @property
    def stopped(self) -> float | None:
        """See `Arm`."""
        return self.output.stopped

    @property
    def steps(self) -> dict[str, float]:
        """See `Arm`."""
        found = {
            "turn over": self.turn_over,
            "first sentence": self.tts.first_text,
            "first speech": self.tts.first_speech,
        }
        return {name: at for name, at in found.items() if at is not None}

    @property
    def begins(self) -> str:
        """See `Arm`."""
        return self.tts.said[0] if self.tts.said else ""

    @property
    def written(self) -> str:
        """See `Arm`."""
        return " ".join(self.tts.said)

    async def hear(self, pcm: bytes) -> None:
        """See `Arm`."""
        await self.microphone.push_audio_frame(InputAudioRawFrame(pcm, MIC, 1))

    async def kept(self) -> str:
        """See `Arm`."""
        messages: list[Any] = self.context.get_messages()
        said = messages[1] if len(messages) > 1 else {"role": "", "content": ""}
        return str(said["content"]) if said["role"] == "assistant" else ""

    async def words(self, played: bytes) -> tuple[list[ReplyWord], bool]:
        """See `Arm`: of all texts that were played, wholly or in part."""
        found: list[ReplyWord] = []
        pcm = bytearray()
        for text in self.tts.said:
            if len(pcm) >= len(played):
                break
            whole, marks = await spoken(self.voice, text)
            begun = len(pcm) // 2
            for word in words_of(text, marks):
                found.append(ReplyWord(word.text, begun + word.start, begun + word.end))
            pcm += whole
        return found, pcm.startswith(played)

    async def forget(self) -> None:
        """See `Arm`."""
        await self.worker.queue_frame(InterruptionFrame())
        await rest(self)
        await self.worker.queue_frame(InterruptionFrame())
        await anyio.sleep(0.1)
        self.context.set_messages([])
        self.speaker.pieces.clear()
        self.begin()
