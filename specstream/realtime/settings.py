"""The session object: a client's settings, how updates merge, and the overrides of one response."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field

from specstream.errors import PromptError, SamplingError
from specstream.realtime.input_settings import NO_PROMPTS, AudioFormat, AudioInput, Group
from specstream.realtime.items import ToolChoice, ToolList
from specstream.realtime.wire import Refused, Sparse, Strict, at_most, expecting
from specstream.types import SamplingParams, Truncation, template_kwargs

__all__ = [
    "MAX_SETTINGS",
    "Biases",
    "OwnEvent",
    "ResponseSettings",
    "Sampling",
    "SessionSettings",
    "Texts",
    "TokenIds",
    "sampling_params",
    "truncation_of",
]

MAX_SETTINGS = 128 << 10
"""Maximum characters of a session's settings as JSON: every update echoes all settings."""

OwnEvent = Literal["avatar", "prompt", "reasoning", "revoke", "report", "hearing", "preview"]


def _one_modality(value: list[str]) -> list[str]:
    if len(value) != 1:
        raise ValueError('["text"] or ["audio"]; audio always comes with its transcript')
    return value


def _variables(value: Any) -> dict[str, Any]:
    try:
        return template_kwargs(value)
    except PromptError as error:
        raise ValueError(str(error).removeprefix("chat_template_kwargs: ")) from None


def _no_prompt(value: Any) -> Any:
    if value:
        raise ValueError(NO_PROMPTS)
    return value


def _small(value: dict[str, str]) -> dict[str, str]:
    if any(len(key) > 64 or len(text) > 512 for key, text in value.items()):
        raise ValueError("keys have at most 64 characters and values at most 512")
    return value


TokenLimit = Annotated[
    Annotated[int, Field(strict=True, ge=1, le=4096)] | Literal["inf"],
    expecting('an integer from 1 to 4096, or "inf"'),
]
Modalities = Annotated[list[Literal["text", "audio"]], at_most(16), AfterValidator(_one_modality)]
NoPrompt = Annotated[Any, BeforeValidator(_no_prompt)]
Texts = Annotated[tuple[Annotated[str, Field(max_length=256)], ...], at_most(64)]
TokenIds = Annotated[tuple[int, ...], at_most(64)]
Biases = Annotated[dict[int, float], at_most(1024)]
TemplateKwargs = Annotated[dict[str, Any], BeforeValidator(_variables)]
Metadata = Annotated[dict[str, str], at_most(16), AfterValidator(_small)]
Voice = Annotated[str | dict[str, str], expecting('a name, or an object such as {"id": "NAME"}')]


class AudioOutput(Group):
    """``voice`` is kept and echoed; the server speaks with the voice that it was started with."""

    format: AudioFormat = AudioFormat()
    voice: Voice = "default"
    speed: float = 1.0


class Audio(Group):
    """Settings of audio in and out."""

    input: AudioInput = AudioInput()
    output: AudioOutput = AudioOutput()


class Sampling(Group):
    """How tokens are drawn: the plain data of `SamplingParams`. Null is the server's default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Biases | None = None
    bad_words: Texts | None = None
    stop: Texts | None = None
    stop_token_ids: TokenIds | None = None
    min_tokens: int | None = None
    max_repeats: int | None = None
    seed: int | None = None

    @classmethod
    def dump(cls, params: SamplingParams) -> dict[str, Any]:
        """The part of ``params`` that a client sends (``max_tokens`` is a setting of its own).

        Raises:
            SamplingError: a field that holds code can't be sent, or ``params`` is something else.
        """
        if not isinstance(params, SamplingParams):
            raise SamplingError(f"sampling must be SamplingParams(...), not {params!r:.80}")
        for field in fields(params):
            sent = field.name in cls.model_fields or field.name == "max_tokens"
            if not sent and getattr(params, field.name):
                raise SamplingError(f"{field.name} can't be sent to a server")
        values = {name: getattr(params, name) for name in cls.model_fields}
        return {name: value for name, value in values.items() if value is not None}


class SessionOwn(Group):
    """``session.specstream``: our event types that the client wants, and how replies are made.

    ``interrupt``: whether a user's turn is announced, and stops a reply, as soon as a voice is heard
    (as with OpenAI) or only at its first recognised word.
    ``learn`` false keeps the session's responses out of learning in service.
    """

    events: Annotated[list[OwnEvent], at_most(16)] = []
    interrupt: Literal["voice", "words"] = "voice"
    learn: bool = True
    sampling: Sampling = Sampling()
    chat_template_kwargs: TemplateKwargs = {}


class TokenLimits(Strict):
    """``post_instructions``: most tokens of a prompt behind its instructions."""

    post_instructions: Annotated[int, Field(strict=True, ge=1)]


class RetentionRatio(Sparse, Strict):
    """How far a conversation that outgrows the context is shortened; see `Truncation`."""

    type: Literal["retention_ratio"]
    retention_ratio: Annotated[float, Field(ge=0, le=1)]
    token_limits: TokenLimits | None = None


class SessionSettings(Group):
    """All settings of a session. Those that `leave_out` removes from updates keep their defaults."""

    type: Literal["realtime"]
    model: str = "specstream"
    instructions: str = ""
    output_modalities: Modalities = ["audio"]
    max_output_tokens: TokenLimit = "inf"
    audio: Audio = Audio()
    tools: ToolList = []
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool | None = None
    prompt: None = None
    reasoning: None = None
    tracing: None = None
    truncation: Literal["auto", "disabled"] | RetentionRatio = "auto"
    include: None = None
    specstream: SessionOwn = SessionOwn()

    def merged(self, update: Self) -> Self:
        """See `Group.merged`.

        Raises:
            Refused: together the settings are larger than `MAX_SETTINGS`.
        """
        merged = super().merged(update)
        if len(merged.model_dump_json()) > MAX_SETTINGS:
            message = f"The session's settings are longer than {MAX_SETTINGS} characters of JSON."
            raise Refused("settings_too_large", message, param="session")
        return merged


class ResponseAudioOutput(Strict):
    """See `AudioOutput`."""

    format: AudioFormat | None = None
    voice: Voice | None = None


class ResponseAudio(Strict):
    """Audio of one response."""

    output: ResponseAudioOutput = ResponseAudioOutput()


class ResponseOwn(Strict):
    """``response.specstream``: for this response only; its settings win over the session's.

    ``speculate`` false decodes without a proposer, to compare; ``learn`` false keeps the response out
    of learning in service.
    """

    sampling: Sampling = Sampling()
    chat_template_kwargs: TemplateKwargs = {}
    speculate: bool = True
    learn: bool = True


class ResponseSettings(Strict):
    """The settings in a ``response.create``; an absent one is taken from the session."""

    output_modalities: Modalities | None = None
    instructions: str | None = None
    audio: ResponseAudio | None = None
    input: Annotated[list[dict[str, Any]], at_most(4096)] | None = None
    conversation: Literal["auto", "none"] | None = None
    tools: ToolList | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: TokenLimit | None = None
    metadata: Metadata | None = None
    prompt: NoPrompt = None
    reasoning: dict[str, Any] | None = None
    specstream: ResponseOwn = ResponseOwn()


def sampling_params(
    base: SamplingParams, session: Sampling, response: Sampling, limit: int | str, *, at: str
) -> SamplingParams:
    """The parameters of one response: its own, else the session's, else ``base``.

    ``at`` is the part of the frame that is being served, ``"session"`` or ``"response"``.

    Raises:
        Refused: a value is out of range.
    """
    chosen = {**session.model_dump(exclude_none=True), **response.model_dump(exclude_none=True)}
    if isinstance(limit, int):
        chosen["max_tokens"] = limit
    try:
        return replace(base, **chosen)
    except SamplingError as error:
        raise Refused("invalid_value", f"{error}.", param=f"{at}.specstream.sampling") from None


def truncation_of(setting: Literal["auto", "disabled"] | RetentionRatio) -> Truncation | None:
    """Translate the session's ``truncation``."""
    if isinstance(setting, RetentionRatio):
        limits = setting.token_limits
        return Truncation(setting.retention_ratio, limits.post_instructions if limits else None)
    return Truncation() if setting == "auto" else None
