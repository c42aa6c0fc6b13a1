"""A recogniser of specstream as a service of Pipecat."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from pipecat.audio.utils import create_stream_resampler
from pipecat.frames.frames import (
    CancelFrame,
    EndFrame,
    Frame,
    InterimTranscriptionFrame,
    StartFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.settings import STTSettings
from pipecat.services.stt_service import STTService
from pipecat.transcriptions.language import Language
from pipecat.utils.errors import ErrorCategory
from pipecat.utils.time import time_now_iso8601
from pipecat.utils.types import is_given
from pipecat_specstream.faults import category_of
from pipecat_specstream.heard_speech import HeardSpeech
from specstream.errors import ConfigError, SpecstreamError
from specstream.listening import Recognizer, Transcript

__all__ = ["SpecstreamSTTService"]

_BEFORE_S = 1.0  # of audio before the voice was detected; detection lags behind the first sound
_UTTERANCES = 8  # that wait for the recogniser at most; then the pipeline waits


class SpecstreamSTTService(STTService):
    """Transcribes what a user says between two pauses, while it is said.

    Needs voice activity detection in the pipeline, as Pipecat's `SegmentedSTTService` does; unlike
    that one it gives the recogniser the audio as it comes, so interim transcripts are there, and a
    recogniser that works along has little left to do at the pause.

    Args:
        recognizer: A loaded recogniser. It belongs to the caller; many services may share it.
        interim_s: Seconds of new audio between two interim transcripts; None: no interim transcripts,
            which saves work on a recogniser that reads all audio again for each.
        settings: The language; None: any that the recogniser knows.
        **options: Those of Pipecat's `STTService`. Measure ``ttfs_p99_latency`` on your machine: turn
            strategies wait that long for a transcript.

    Raises:
        ConfigError: a language that the recogniser doesn't know, a model (the recogniser decides it),
            or ``interim_s`` isn't above 0.
    """

    def __init__(
        self,
        *,
        recognizer: Recognizer,
        interim_s: float | None = 1.0,
        settings: STTSettings | None = None,
        **options: Any,
    ) -> None:
        if interim_s is not None and not interim_s > 0:
            raise ConfigError(f"interim_s must be above 0, or None, not {interim_s!r}")
        self._recognizer = recognizer
        full = STTSettings(model=recognizer.capabilities.name, language=None)
        if settings is not None:
            self._check(settings)
            full.apply_update(settings)
        super().__init__(settings=full, **options)
        self._interim_s = interim_s
        self._rate = recognizer.capabilities.sample_rates[0]
        self._before = bytearray()
        self._utterance: HeardSpeech | None = None
        self._waiting: asyncio.Queue[HeardSpeech | None] = asyncio.Queue(_UTTERANCES)
        self._task: asyncio.Task[None] | None = None

    def can_generate_metrics(self) -> bool:
        """True: time from the end of speech to the transcript, seconds of audio."""
        return True

    def language_to_service_language(self, language: Language) -> str | None:
        """The language's ISO 639-1 code."""
        return str(language.value).partition("-")[0]

    async def start(self, frame: StartFrame) -> None:
        """Begin to transcribe."""
        await super().start(frame)
        rates = self._recognizer.capabilities.sample_rates
        self._rate = self.sample_rate if self.sample_rate in rates else rates[0]
        self._resampler = create_stream_resampler()
        self._task = self.create_task(self._transcribe(), "transcripts")

    async def stop(self, frame: EndFrame) -> None:
        """Transcribe what was said so far, then end."""
        self._end_utterance()
        if self._task is not None:
            await self._waiting.put(None)
            await self._task
            self._task = None
        await super().stop(frame)

    async def cancel(self, frame: CancelFrame) -> None:
        """Drop what was not transcribed."""
        await self._drop()
        await super().cancel(frame)

    async def cleanup(self) -> None:
        """Release what the service holds; the recogniser stays open."""
        await super().cleanup()  # type: ignore[no-untyped-call]
        await self._drop()

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        """Take the next audio; transcripts come from a task of their own."""
        if self.sample_rate != self._rate:
            audio = await self._resampler.resample(audio, self.sample_rate, self._rate)
        if self._utterance is not None:
            self._utterance.add(audio)
        else:
            self._before += audio
            del self._before[: -2 * int(_BEFORE_S * self._rate)]
        yield None

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """See `STTService`; an utterance lasts from the start to the stop of a detected voice."""
        await super().process_frame(frame, direction)
        if isinstance(frame, VADUserStartedSpeakingFrame) and self._utterance is None:
            await self._begin_utterance()
        elif isinstance(frame, VADUserStoppedSpeakingFrame):
            await self.emit_stt_usage_metrics()  # type: ignore[no-untyped-call]
            self._end_utterance()

    async def _begin_utterance(self) -> None:
        language = self._settings.language
        try:
            stream = self._recognizer.open(self._rate, language=str(language) if language else None)
        except SpecstreamError as error:
            await self._tell(error)
            return
        every = int((self._interim_s or 0.0) * self._rate) * 2
        self._utterance = HeardSpeech(stream, every, self._user_id)
        self._utterance.add(bytes(self._before))
        self._before.clear()
        await self._waiting.put(self._utterance)

    def _end_utterance(self) -> None:
        if self._utterance is not None:
            self._utterance.end()
            self._utterance = None

    async def _transcribe(self) -> None:
        """Transcribe utterance after utterance."""
        while (utterance := await self._waiting.get()) is not None:
            try:
                await self._follow(utterance)
            except Exception as error:  # the next utterance may go well
                await self._tell(error)
            finally:
                await utterance.aclose()

    async def _follow(self, utterance: HeardSpeech) -> None:
        shown = ""
        while (interim := await utterance.interim()) is not None:
            if interim.has_words and interim.text != shown:
                shown = interim.text
                await self.push_frame(InterimTranscriptionFrame(shown, *self._facts(utterance, interim)))
        final = await utterance.finish()
        if final.has_words:  # recognisers write noise as "..." or nothing
            facts = self._facts(utterance, final)
            await self.push_frame(TranscriptionFrame(final.text, *facts, finalized=True))

    def _facts(
        self, utterance: HeardSpeech, transcript: Transcript
    ) -> tuple[str, str, Language | None, Transcript]:
        code = transcript.language or self._settings.language
        language = Language(str(code)) if code and str(code) in set(Language) else None
        return utterance.user_id, time_now_iso8601(), language, transcript

    async def _drop(self) -> None:
        if self._task is not None:
            await self.cancel_task(self._task)
            self._task = None
        left = [self._utterance] if self._utterance is not None else []
        while not self._waiting.empty():
            waiting = self._waiting.get_nowait()
            left += [waiting] if waiting is not None else []
        for utterance in left:
            await utterance.aclose()
        self._utterance = None

    async def _update_settings(  # type: ignore[override]  # as in the base class
        self, delta: STTSettings
    ) -> dict[str, Any]:
        try:
            self._check(delta)
        except SpecstreamError as error:
            # The settings stay as they were, so the service can go on.
            await self.push_error(
                f"settings not changed: {error}", error, category=ErrorCategory.APPLICATION
            )
            return {}
        return await super()._update_settings(delta)

    def _check(self, delta: STTSettings) -> None:
        facts = self._recognizer.capabilities
        others = delta.given_fields().keys() - {"language"}
        if others - ({"model"} if delta.model in (None, facts.name) else set()):
            raise ConfigError(
                f"{', '.join(sorted(others))}: the recogniser decides that; give the service another"
            )
        if is_given(delta.language) and delta.language is not None:
            code = str(delta.language).partition("-")[0]
            if facts.languages and code not in facts.languages:
                raise ConfigError(
                    f"recogniser {facts.name!r} doesn't know the language {code!r}; it knows "
                    f"{', '.join(facts.languages)}"
                )

    async def _tell(self, error: Exception) -> None:
        await self.push_error(f"no transcript: {error}", exception=error, category=category_of(error))
