"""A voice of specstream as a service of Pipecat."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, cast

from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    CancelFrame,
    EndFrame,
    Frame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSTextFrame,
)
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TextAggregationMode, TTSService
from pipecat.utils.errors import ErrorCategory
from pipecat.utils.text.base_text_aggregator import TextType
from pipecat_specstream.faults import category_of
from pipecat_specstream.heard_text_frame import HeardTextFrame
from pipecat_specstream.spoken_turn import SpokenTurn
from pipecat_specstream.word_cutter import WordCutter
from specstream import Pipeline, Speech
from specstream.errors import ConfigError
from specstream.stages import Readout, SegmentStage, SpeechSynthesizer, Stage, StageFailed, VoiceStage

__all__ = ["SpecstreamTTSService"]

_QUIET_S = 30.0  # a context without audio for so long is given up, and the next one is spoken
_SILENCE_MS = 10
_OPEN_TURNS = 16
_DECIDED = frozenset(
    "aggregate_sentences push_start_frame push_stop_frames push_text_frames "
    "reuse_context_id_within_turn settings skip_aggregator_types skip_text_types "
    "text_aggregation_mode".split()
)


class SpecstreamTTSService(TTSService):
    """Speaks a reply in specstream's phrases, with its words in line with the audio.

    Each audio context is one run of a specstream pipeline, which takes the model's text as it comes and
    cuts it into phrases by the audio that is still to be played. Each word's text frame lies between
    the samples of the word's first and second half, so an interrupted reply enters the context up to
    the last word that was heard, exact to one chunk of the transport (40 ms), and a whole one letter
    for letter.

    Args:
        voice: A loaded voice, or a `RemoteStage` for one behind a WebSocket. It belongs to the caller;
            many services may share it.
        readout: How Markdown, code and emoji are read out; a remote voice decides that itself.
        **options: Those of Pipecat's `TTSService`, without ``settings`` and how text is aggregated.

    Raises:
        ConfigError: an option that the service decides itself, or a ``readout`` for a remote voice.
    """

    def __init__(
        self,
        *,
        voice: SpeechSynthesizer | Stage[Any, Any],
        readout: Readout | None = None,
        **options: Any,
    ) -> None:
        if wrong := sorted(_DECIDED & options.keys()):
            raise ConfigError(
                f"{', '.join(wrong)}: decided by SpecstreamTTSService itself; leave it out "
                "(code and emoji are silenced by readout=Readout(code='silent'))"
            )
        stage: Stage[Any, Any]
        if hasattr(voice, "run"):
            if readout is not None:
                raise ConfigError("readout: this voice is a stage, which decides that itself")
            stage = cast("Stage[Any, Any]", voice)
            name, language = stage.name, None
        else:
            facts = voice.capabilities
            stage = VoiceStage(voice, readout or Readout())
            name, language = facts.name, facts.language or None
            options.setdefault("sample_rate", facts.sample_rate)
        options.setdefault("stop_frame_timeout_s", _QUIET_S)
        super().__init__(
            text_aggregation_mode=TextAggregationMode.TOKEN,
            push_start_frame=True,
            push_stop_frames=True,
            settings=TTSSettings(model=None, voice=name, language=language),
            **options,
        )
        self._speech = Pipeline([[stage]], head=SegmentStage())
        self._turns: dict[str, SpokenTurn] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._growing: deque[str] = deque(maxlen=_OPEN_TURNS)  # contexts whose end will be told
        self._last = ""  # the latest word that was given to the transport
        self._kept = True  # whether the words of the context that plays enter the history

    def can_generate_metrics(self) -> bool:
        """True: time to the first byte and audio, characters."""
        return True

    @property
    def supports_processing_metrics(self) -> bool:
        """False: a piece of text is handed on, and its audio comes later."""
        return False

    async def on_turn_context_created(self, context_id: str) -> None:
        """Remember that `flush_audio` will tell the end of this context's text."""
        self._growing.append(context_id)

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """Hand on a piece of text; its audio goes to the audio context as it is made."""
        turn = self._turns.get(context_id)
        if turn is None:
            turn = self._begin(context_id)
        await turn.add(text)
        if context_id not in self._growing:  # a text outside of any reply
            await turn.close()
        yield None

    def _begin(self, context_id: str) -> SpokenTurn:
        turn = self._turns[context_id] = SpokenTurn(context_id)
        turn.task = self.create_task(self._speak(turn), "speech")
        self._tasks.add(turn.task)
        turn.task.add_done_callback(self._tasks.discard)
        turn.task.add_done_callback(lambda _: turn.drop())
        return turn

    async def flush_audio(self, context_id: str | None = None) -> None:
        """No more text will come for a context: speak what is left."""
        if (turn := self._turns.get(context_id or "")) is not None:
            await turn.close()

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        """Stop a context's speech; returns at once, the voice lets go within a buffer."""
        turn = self._turns.pop(context_id, None)
        if turn is not None and turn.task is not None:
            turn.task.cancel()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """See `TTSService`; also notes when the transport begins to play."""
        if isinstance(frame, BotStartedSpeakingFrame):
            now = asyncio.get_running_loop().time()
            waiting = (turn for turn in self._turns.values() if turn.began is None)
            if (turn := next(waiting, None)) is not None:
                turn.began = now
        await super().process_frame(frame, direction)

    async def push_frame(
        self, frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM
    ) -> None:
        """Push a frame, except for Pipecat's own text frames, which would repeat the words."""
        if isinstance(frame, TTSStartedFrame):
            self._kept = bool(frame.append_to_context)
        elif isinstance(frame, HeardTextFrame):
            frame.append_to_context = self._kept
        elif isinstance(frame, TTSTextFrame):
            return
        await super().push_frame(frame, direction)

    async def stop(self, frame: EndFrame) -> None:
        """Speak all text that was given, then end."""
        for turn in list(self._turns.values()):
            await turn.close()
        await super().stop(frame)

    async def cancel(self, frame: CancelFrame) -> None:
        """Stop all speech at once."""
        self._stop_speech()
        await super().cancel(frame)

    async def cleanup(self) -> None:
        """Wait until all speech has stopped; the voice stays open."""
        await super().cleanup()  # type: ignore[no-untyped-call]
        self._stop_speech()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _stop_speech(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _update_settings(  # type: ignore[override]  # as in the base class
        self, delta: TTSSettings
    ) -> dict[str, Any]:
        if names := ", ".join(sorted(delta.given_fields())):
            await self.push_error(
                f"{names}: the voice decides that; give the service another voice",
                category=ErrorCategory.APPLICATION,
            )
        return {}

    async def _speak(self, turn: SpokenTurn) -> None:
        """Speak a turn, and end its audio context."""
        words, failed = WordCutter(), False
        rate = self.sample_rate
        try:
            async with self._speech.run(turn.chunks()) as events:
                events.follow(turn.played_s)
                async for event in events:
                    if isinstance(event.item, Speech):
                        rate = event.item.sample_rate
                        await self._give(turn, words.add(event.item, turn.text), rate)
                    elif isinstance(event.item, StageFailed):
                        failed = True
                        await self._tell(event.item.error)
        except Exception as error:
            failed = True
            await self._tell(error)
        finally:
            self._turns.pop(turn.context_id, None)
        rest = words.close(turn.text)
        if not turn.made_s and not failed:  # nothing to say, which Pipecat takes for a broken voice
            rest.append(bytes(2 * (rate * _SILENCE_MS // 1000)))
        await self._give(turn, rest, rate)
        if self.audio_context_available(turn.context_id):
            await self.remove_audio_context(turn.context_id)

    async def _give(self, turn: SpokenTurn, pieces: list[bytes | str], rate: int) -> None:
        for piece in pieces:
            frame: Frame
            if isinstance(piece, bytes):
                turn.made_s += len(piece) / 2 / rate
                frame = TTSAudioRawFrame(piece, rate, 1, context_id=turn.context_id)
            else:
                if not (turn.worded or self._last[-1:].isspace() or piece[:1].isspace()):
                    piece = f" {piece}" if self._last else piece  # another context's come before it
                turn.worded, self._last = True, piece
                frame = HeardTextFrame(piece, TextType.WORD, context_id=turn.context_id)
                frame.includes_inter_frame_spaces = True
                frame.will_be_spoken = True
            await self.append_to_audio_context(turn.context_id, frame)

    async def _tell(self, error: Exception) -> None:
        await self.push_error(
            f"speech ended early: {error}", exception=error, category=category_of(error)
        )
