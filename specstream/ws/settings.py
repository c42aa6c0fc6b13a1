"""The session object: what a client may set, how updates merge, what one response overrides."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from specstream.errors import SamplingError
from specstream.types import SamplingParams
from specstream.ws.wire import Refused, Strict, unused, validate

__all__ = [
    "MAX_SETTINGS",
    "OwnEvent",
    "ResponseAudio",
    "ResponseOwn",
    "Sampling",
    "SessionSettings",
    "TokenLimit",
    "sampling_params",
]

MAX_SETTINGS = 128 << 10
"""Characters of a session's settings as JSON: they are echoed whole at every update."""

OwnEvent = Literal["avatar", "prompt", "revoke", "report"]


def _token_limit(value: Any) -> Any:
    if value == "inf" or (isinstance(value, int) and not isinstance(value, bool)):
        if value == "inf" or 1 <= value <= 4096:
            return value
    raise ValueError('an integer from 1 to 4096, or "inf"')


def _one_modality(value: list[str]) -> list[str]:
    if len(value) != 1:
        raise ValueError('["text"] or ["audio"]; audio always comes with its transcript')
    return value


def _as_spoken(value: float) -> float:
    if value != 1.0:
        raise ValueError("this server speaks at speed 1.0 only")
    return value


TokenLimit = Annotated[Any, BeforeValidator(_token_limit)]
Modalities = Annotated[list[Literal["text", "audio"]], AfterValidator(_one_modality)]
NoTools = Annotated[
    Any, BeforeValidator(unused("this server calls no tools; leave the list empty"))
]
NoPrompt = Annotated[Any, BeforeValidator(unused("this server stores no prompt templates"))]
Texts = Annotated[tuple[str, ...], Field(max_length=64)]
Speed = Annotated[float, AfterValidator(_as_spoken)]


class AudioFormat(Strict):
    """PCM, signed 16-bit little-endian mono; the only rate is 24 kHz."""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Literal[24000] = 24000


class AudioOutput(Strict):
    """``voice`` is kept and echoed; the server speaks with the voice that it was started with."""

    format: AudioFormat = AudioFormat()
    voice: str | dict[str, str] = "default"
    speed: Speed = 1.0


class AudioInput(Strict):
    """Kept and echoed only: this server hears no audio, and says so when some is sent."""

    format: dict[str, Any] | None = None
    noise_reduction: dict[str, Any] | None = None
    transcription: dict[str, Any] | None = None
    turn_detection: dict[str, Any] | None = None


class Audio(Strict):
    """Audio in and out."""

    input: AudioInput = AudioInput()
    output: AudioOutput = AudioOutput()


class Sampling(Strict):
    """How tokens are drawn: the plain data of `SamplingParams`. Null is the server's default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[int, float] | None = Field(default=None, max_length=1024)
    bad_words: Texts | None = None
    stop: Texts | None = None
    stop_token_ids: Annotated[tuple[int, ...], Field(max_length=64)] | None = None
    min_tokens: int | None = None
    seed: int | None = None


class SessionOwn(Strict):
    """``session.specstream``: our own event types that the client wants, and the sampling."""

    events: list[OwnEvent] = []
    sampling: Sampling = Sampling()


class SessionSettings(Strict):
    """The session as it stands. Fields that have no effect here are kept and echoed."""

    type: Literal["realtime"]
    model: str = "specstream"
    instructions: str = ""
    output_modalities: Modalities = ["audio"]
    max_output_tokens: TokenLimit = "inf"
    audio: Audio = Audio()
    tools: NoTools = []
    tool_choice: Any = "auto"
    parallel_tool_calls: bool | None = None
    prompt: NoPrompt = None
    reasoning: dict[str, Any] | None = None
    tracing: Any = None
    truncation: Any = "auto"
    include: list[str] | None = None
    specstream: SessionOwn = SessionOwn()

    def merged(self, update: SessionSettings) -> SessionSettings:
        """These settings with every field that ``update`` names replaced.

        Objects that group settings are merged; lists, formats and the like are replaced whole.

        Raises:
            Refused: a value doesn't go with another, or all of them are more than is kept.
        """
        changes = update.model_dump(exclude_unset=True)
        merged = validate(SessionSettings, _merge(self.model_dump(), changes), at="session")
        if len(merged.model_dump_json()) > MAX_SETTINGS:
            message = f"The session's settings are longer than {MAX_SETTINGS} characters of JSON."
            raise Refused("settings_too_large", message, param="session")
        return merged


_GROUPS = {"audio", "input", "output", "specstream", "sampling"}


def _merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for key, value in new.items():
        grouped = key in _GROUPS and isinstance(value, dict)
        merged[key] = _merge(merged[key], value) if grouped else value
    return merged


class ResponseAudioOutput(Strict):
    """See `AudioOutput`."""

    format: AudioFormat = AudioFormat()
    voice: str | dict[str, str] | None = None


class ResponseAudio(Strict):
    """Audio of one response."""

    output: ResponseAudioOutput = ResponseAudioOutput()


class ResponseOwn(Strict):
    """``response.specstream``: sampling for this response only."""

    sampling: Sampling = Sampling()


class ResponseSettings(Strict):
    """What ``response.create`` may say about its response; what is absent is the session's."""

    output_modalities: Modalities | None = None
    instructions: str | None = None
    audio: ResponseAudio | None = None
    input: list[dict[str, Any]] | None = None
    conversation: Literal["auto", "none"] | None = None
    tools: NoTools = []
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: TokenLimit | None = None
    metadata: dict[str, str] | None = None
    prompt: NoPrompt = None
    reasoning: dict[str, Any] | None = None
    specstream: ResponseOwn = ResponseOwn()

    @field_validator("metadata")
    @classmethod
    def _small(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        for key, text in (value or {}).items():
            if len(key) > 64 or len(text) > 512:
                raise ValueError("keys have at most 64 characters and values at most 512")
        if value and len(value) > 16:
            raise ValueError("at most 16 pairs")
        return value


def sampling_params(
    base: SamplingParams, session: Sampling, response: Sampling, limit: int | str
) -> SamplingParams:
    """The parameters of one response: its own, else the session's, else ``base``.

    Raises:
        Refused: a value is out of range.
    """
    chosen = {**session.model_dump(exclude_none=True), **response.model_dump(exclude_none=True)}
    if isinstance(limit, int):
        chosen["max_tokens"] = limit
    try:
        return replace(base, **chosen)
    except SamplingError as error:
        raise Refused("invalid_value", f"{error}.", param="specstream.sampling") from None
