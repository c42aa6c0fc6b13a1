"""One stream of audio, heard turn by turn."""

import asyncio
import time
from dataclasses import dataclass, replace
from typing import Any

from livekit import rtc
from livekit.agents import APIConnectOptions, stt, utils
from specstream.errors import ConfigError, SpecstreamError
from specstream.listening import (
    Ears,
    Listener,
    ListenerSettings,
    ListeningFailed,
    Transcript,
    TurnEnded,
    TurnHeard,
    TurnLost,
    TurnPartial,
    TurnPaused,
    TurnStarted,
)

from .faults import api_error
from .heard import speech_data

__all__ = ["RecognizeStream"]

_Type = stt.SpeechEventType
_MOST_LOST = 3  # turns in a row


@dataclass(slots=True)
class _Turn:
    """A turn without a final transcript: where its audio begins and ends."""

    start_ms: float
    end_ms: float | None = None


class RecognizeStream(stt.RecognizeStream):
    """An async iterator of `SpeechEvent`; audio is pushed by another task.

    Each turn gives ``START_OF_SPEECH``, any number of ``INTERIM_TRANSCRIPT`` and, in its pauses,
    ``PREFLIGHT_TRANSCRIPT``, then ``FINAL_TRANSCRIPT`` and ``END_OF_SPEECH``. Without words there is no
    transcript; if the next turn has begun meanwhile, the end is told after that one only. ``flush`` ends
    the open turn at once.
    """

    def __init__(
        self,
        service: stt.STT[Any],
        *,
        ears: Ears,
        settings: ListenerSettings,
        language: str | None,
        conn_options: APIConnectOptions,
    ) -> None:
        super().__init__(stt=service, conn_options=conn_options)
        self._ears = ears
        self._settings = settings if language is None else replace(settings, language=language)
        self._turns: dict[int, _Turn] = {}
        self._lost = 0
        self._id = utils.shortuuid("specstream_")

    async def _run(self) -> None:
        self._turns.clear()
        first = await self._first()
        if first is None:
            return
        try:
            await self._listen(first)
        except SpecstreamError as error:
            raise api_error(error, begun=False) from error

    async def _listen(self, first: rtc.AudioFrame) -> None:
        """Tell what is heard until the input ends.

        Raises:
            SpecstreamError: the audio can't be heard, the turn detector broke, or no transcript came of
            three turns in a row.
        """
        broken: SpecstreamError | None = None
        listener = Listener(self._ears, sample_rate=first.sample_rate, settings=self._settings)
        async with listener:  # raises nothing in here: its task group would wrap the error
            feeding = asyncio.create_task(self._feed(listener, first))
            try:
                async for event in listener:
                    if isinstance(event, ListeningFailed):
                        broken = event.error
                        break
                    self._lost += isinstance(event, TurnLost)
                    self._tell(event, listener)
                    if isinstance(event, TurnLost) and self._lost >= _MOST_LOST:
                        broken, self._lost = event.error, 0  # the recogniser, for good
                        break
            finally:
                if broken is not None or not feeding.done():
                    feeding.cancel()
                await asyncio.wait([feeding])
        if broken is not None:
            raise broken
        if not feeding.cancelled():
            feeding.result()  # raises what ended it

    async def _first(self) -> rtc.AudioFrame | None:
        """The first audio, which says the sample rate; None if there is none."""
        async for item in self._input_ch:
            if isinstance(item, rtc.AudioFrame):
                return item
        return None

    async def _feed(self, listener: Listener, first: rtc.AudioFrame) -> None:
        """Give all audio to the listener; whatever ends this ends the listener's events, too."""
        try:
            await listener.add(_mono(first))
            async for item in self._input_ch:
                if isinstance(item, rtc.AudioFrame):
                    await listener.add(_mono(item))
                else:
                    listener.commit()
        finally:
            listener.finish()

    def _tell(self, event: object, listener: Listener) -> None:
        match event:
            case TurnStarted(turn, at_ms, start_ms):
                self._turns[turn] = _Turn(start_ms)
                since = _wall(at_ms, listener)
                self._send(stt.SpeechEvent(_Type.START_OF_SPEECH, speech_start_time=since))
            case TurnPartial(turn, said, again):
                if said.has_words and not again:
                    self._said(_Type.INTERIM_TRANSCRIPT, turn, said, listener)
            case TurnPaused(turn, said):
                if said.has_words:
                    self._said(_Type.PREFLIGHT_TRANSCRIPT, turn, said, listener)
            case TurnEnded(turn, _, end_ms):
                self._turns[turn].end_ms = end_ms
            case TurnHeard(turn, said):
                self._lost = 0
                if said.has_words:
                    self._said(_Type.FINAL_TRANSCRIPT, turn, said, listener)
                self._ended(turn, said, listener)
            case TurnLost(turn, error):
                self._emit_error(api_error(error, begun=True), recoverable=True)
                self._ended(turn, Transcript(""), listener)

    def _said(self, kind: stt.SpeechEventType, turn: int, said: Transcript, listener: Listener) -> None:
        now = self._turns[turn]
        end_ms = listener.now_ms if now.end_ms is None else now.end_ms
        data = speech_data(said, now.start_ms / 1e3, end_ms / 1e3, self.start_time_offset)
        self._send(stt.SpeechEvent(kind, alternatives=[data]))

    def _ended(self, turn: int, said: Transcript, listener: Listener) -> None:
        """Tell that nobody speaks, unless the next turn has begun; and how much audio was heard."""
        over = self._turns.pop(turn)
        end_ms = listener.now_ms if over.end_ms is None else over.end_ms
        spoke_until = over.start_ms + said.words[-1].end_ms if said.words else end_ms
        if not self._turns:
            until = _wall(min(spoke_until, end_ms), listener)
            self._send(stt.SpeechEvent(_Type.END_OF_SPEECH, speech_end_time=until))
        usage = stt.RecognitionUsage(audio_duration=(end_ms - over.start_ms) / 1e3)
        self._send(stt.SpeechEvent(_Type.RECOGNITION_USAGE, recognition_usage=usage))

    def _send(self, event: stt.SpeechEvent) -> None:
        self._event_ch.send_nowait(replace(event, request_id=self._id))


def _wall(at_ms: float, listener: Listener) -> float:
    """The wall clock's seconds at a moment of the audio, whose end is now."""
    return time.time() - (listener.now_ms - at_ms) / 1e3


def _mono(frame: rtc.AudioFrame) -> bytes:
    if frame.num_channels != 1:
        raise ConfigError(f"audio must be mono, not of {frame.num_channels} channels")
    return bytes(frame.data)
