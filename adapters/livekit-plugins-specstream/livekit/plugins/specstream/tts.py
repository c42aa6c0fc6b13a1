"""`TTS`: any voice of specstream as the voice of LiveKit Agents."""

from collections.abc import Callable
from typing import Any

from livekit.agents import DEFAULT_API_CONNECT_OPTIONS, APIConnectOptions, tts
from specstream.errors import ConfigError
from specstream.stages import Pipeline, Readout, SegmentStage, SpeechSynthesizer, Stage, VoiceStage

from .tts_stream import SynthesizeStream

__all__ = ["TTS"]


class TTS(tts.TTS[Any]):
    """Speech by a voice that the caller has loaded, and closes; the words' times come from the voice.

    ::

        session = AgentSession(tts=TTS(voice=load_adapter("voice", "hibari")),
                               use_tts_aligned_transcript=True, ...)

    Text is cut into phrases as it comes, and spoken phrase by phrase. Each word is told before its
    audio, as it was written ("3", not "three"), so that an interrupted reply ends in the history at the
    word that was heard.

    Args:
        voice: A `SpeechSynthesizer`, or a stage that gives speech, such as
            ``RemoteStage("ws://127.0.0.1:8770", "voice")`` for a voice behind a WebSocket. Many
            services may share it; two replies may then be spoken at a time.
        sample_rate: Samples a second of a stage's speech, such as 24000; a voice says its own.
        readout: How Markdown, emoji and the like are read (see `Readout`); not for a stage.
        deadline_s: Seconds that text waits for the end of a phrase at most.

    Raises:
        ConfigError: ``voice`` is neither, or ``sample_rate`` or ``readout`` doesn't go with it.
        AdapterFailed: the voice's capabilities are wrong.
    """

    def __init__(
        self,
        *,
        voice: SpeechSynthesizer | Stage[Any, Any],
        sample_rate: int | None = None,
        readout: Readout | None = None,
        deadline_s: float = 0.7,
    ) -> None:
        stage, rate, name = _stage_of(voice, sample_rate, readout)
        super().__init__(
            capabilities=tts.TTSCapabilities(streaming=True, aligned_transcript=True),
            sample_rate=rate,
            num_channels=1,
        )
        self._name = name
        self._pipeline: Callable[[], Pipeline] = lambda: Pipeline(
            [[stage]], head=SegmentStage(deadline_s=deadline_s)
        )

    @property
    def model(self) -> str:
        """The voice's name."""
        return self._name

    @property
    def provider(self) -> str:
        """``"specstream"``."""
        return "specstream"

    def stream(
        self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> SynthesizeStream:
        """Begin to speak one reply, which is written to the stream piece by piece."""
        return SynthesizeStream(self, pipeline=self._pipeline(), conn_options=conn_options)

    def synthesize(
        self, text: str, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> tts.ChunkedStream:
        """Speak a whole text, in the way of `stream`."""
        return self._synthesize_with_stream(text, conn_options=conn_options)


def _stage_of(
    voice: Any, sample_rate: int | None, readout: Readout | None
) -> tuple[Stage[Any, Any], int, str]:
    """The stage that speaks, the sample rate of its speech, and the voice's name."""
    if not isinstance(voice, type) and callable(getattr(voice, "synthesize", None)):
        stage = VoiceStage(voice) if readout is None else VoiceStage(voice, readout)
        own = voice.capabilities.sample_rate
        if sample_rate not in (None, own):
            raise ConfigError(
                f"sample_rate: the voice {voice.capabilities.name!r} speaks at {own}; leave it out"
            )
        return stage, own, voice.capabilities.name
    if not isinstance(voice, type) and callable(getattr(voice, "run", None)):
        if sample_rate is None:
            raise ConfigError("sample_rate: say at how many samples a second the stage speaks")
        if not isinstance(sample_rate, int) or sample_rate < 1000:
            raise ConfigError(f"sample_rate must be a whole number from 1000, not {sample_rate!r}")
        if readout is not None:
            raise ConfigError("readout: a stage reads in its own way; leave it out")
        return voice, sample_rate, str(voice.name)
    raise ConfigError(
        f"voice must be a voice, such as load_adapter('voice', 'hibari'), or a stage, not {voice!r:.80}"
    )
