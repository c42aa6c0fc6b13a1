"""`STT`: specstream's ears as the hearing of LiveKit Agents."""

import asyncio
from typing import Any

from livekit import rtc
from livekit.agents import (
    DEFAULT_API_CONNECT_OPTIONS,
    NOT_GIVEN,
    APIConnectOptions,
    APITimeoutError,
    NotGivenOr,
    stt,
    utils,
)
from specstream.errors import ConfigError, SpecstreamError
from specstream.listening import Ears, ListenerSettings, Recognizer

from .faults import api_error
from .heard import iso_639, speech_data
from .stt_stream import RecognizeStream

__all__ = ["STT"]


class STT(stt.STT[Any]):
    """Speech recognition by parts that the caller has loaded, and closes.

    With `Ears` it streams: turns begin and end by specstream's turn detector and the words, and a pause
    within a turn is LiveKit's preflight. With a recogniser alone it recognises finished audio, and
    LiveKit cuts the turns.

    Args:
        ears: A recogniser and a turn detector; many services may share them.
        recognizer: A recogniser alone.
        settings: How turns are cut and recognised; with ears only.

    Raises:
        ConfigError: not one of ``ears`` and ``recognizer``, or something that is none, or settings that
            don't go with it.
    """

    def __init__(
        self,
        *,
        ears: Ears | None = None,
        recognizer: Recognizer | None = None,
        settings: ListenerSettings | None = None,
    ) -> None:
        if (ears is None) == (recognizer is None):
            raise ConfigError("give either ears=Ears(recognizer, detector) or recognizer=")
        if ears is not None and not isinstance(ears, Ears):
            raise ConfigError(f"ears must be Ears(recognizer, detector), not {ears!r:.80}")
        if not isinstance(settings, ListenerSettings | None):
            raise ConfigError(f"settings must be ListenerSettings(...), not {settings!r:.80}")
        if ears is None and settings is not None:
            raise ConfigError("settings are for ears; a recogniser alone cuts no turns")
        heard_by = ears.recognizer if ears is not None else recognizer
        if heard_by is None or isinstance(heard_by, type) or not hasattr(heard_by, "open"):
            raise ConfigError(f"recognizer must be a recogniser, not {heard_by!r:.80}")
        self._ears, self._recognizer = ears, heard_by
        self._settings = settings or ListenerSettings()
        super().__init__(
            capabilities=stt.STTCapabilities(
                streaming=ears is not None,
                interim_results=ears is not None and self._settings.partial_ms is not None,
                aligned_transcript="word" if heard_by.capabilities.words else False,
                manual_flush=ears is not None,
            )
        )

    @property
    def model(self) -> str:
        """The recogniser's name."""
        return self._recognizer.capabilities.name

    @property
    def provider(self) -> str:
        """``"specstream"``."""
        return "specstream"

    def stream(
        self,
        *,
        language: NotGivenOr[str] = NOT_GIVEN,
        conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS,
    ) -> RecognizeStream:
        """Begin to listen to one stream of audio, mono, at any usual rate.

        Args:
            language: The speaker's, such as ``"en-US"``; by default that of the settings.
            conn_options: How often a listener that broke is replaced.

        Raises:
            ConfigError: there are no ears.
        """
        if self._ears is None:
            raise ConfigError("a recogniser alone doesn't stream: give STT(ears=...)")
        return RecognizeStream(
            self,
            ears=self._ears,
            settings=self._settings,
            language=iso_639(language),
            conn_options=conn_options,
        )

    async def _recognize_impl(
        self,
        buffer: utils.AudioBuffer,
        *,
        language: NotGivenOr[str] = NOT_GIVEN,
        conn_options: APIConnectOptions,
    ) -> stt.SpeechEvent:
        try:
            frame = _suited(rtc.combine_audio_frames(buffer), self._recognizer)
            heard = self._recognizer.open(
                frame.sample_rate, language=iso_639(language) or self._settings.language
            )
            try:
                heard.add(bytes(frame.data))
                async with asyncio.timeout(conn_options.timeout):
                    transcript = await heard.finish()
            finally:
                await heard.aclose()
        except TimeoutError as error:
            raise APITimeoutError(
                f"recognising {frame.duration:.1f} s of audio took longer than "
                f"{conn_options.timeout:g} s; conn_options sets that"
            ) from error
        except SpecstreamError as error:
            raise api_error(error, begun=False) from error
        return stt.SpeechEvent(
            stt.SpeechEventType.FINAL_TRANSCRIPT,
            request_id=utils.shortuuid("specstream_"),
            alternatives=[speech_data(transcript, 0.0, frame.duration, 0.0)],
        )


def _suited(frame: rtc.AudioFrame, recognizer: Recognizer) -> rtc.AudioFrame:
    """The audio at a rate that the recogniser takes.

    Raises:
        ConfigError: audio of several channels.
    """
    if frame.num_channels != 1:
        raise ConfigError(f"audio must be mono, not of {frame.num_channels} channels")
    rates = recognizer.capabilities.sample_rates
    if frame.sample_rate in rates:
        return frame
    resampler = rtc.AudioResampler(frame.sample_rate, rates[0], quality=rtc.AudioResamplerQuality.HIGH)
    return rtc.combine_audio_frames([*resampler.push(frame), *resampler.flush()])
