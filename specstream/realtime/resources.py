"""The objects in frames: items, responses, errors, usage, and where content came from."""

from __future__ import annotations

import logging
import re
from typing import Any, Literal

from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer

from specstream.errors import ConfigError, RequestError, SpecstreamError
from specstream.metrics import Report
from specstream.realtime.wire import ErrorType, Ignored, Refused, Sparse
from specstream.types import Span

ItemStatus = Literal["completed", "incomplete", "in_progress"]
EndStatus = Literal["completed", "cancelled", "incomplete", "failed"]
Status = Literal["in_progress"] | EndStatus
Reason = Literal[
    "client_cancelled", "turn_detected", "max_output_tokens", "content_filter", "server_restarted"
]


class Word(Sparse):
    """A spoken word: its place in the response's audio (24 kHz) and in the reply's text."""

    text: str
    samples: Span
    chars: Span


class GeneratedAudio(Sparse):
    """That a session's audio is made by machine: by which model and voice, as far as they have names.

    ``source`` is C2PA's digital source type. ``mark``: what marks the audio itself, if anything does.
    """

    source: str = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
    model: str | None = None
    voice: str | None = None
    mark: str | None = None


class Extra(Sparse):
    """The ``specstream`` field: a frame's number and time, and where its content came from.

    ``tokens`` and ``chars`` are ranges in the reply as the model wrote it, ``samples`` a range in
    the response's audio at 24 kHz; all are half-open. ``ignored``: the ignored parts of a
    client's frame. ``problem``: what is wrong with a function call (`specstream.types.ToolCall`).
    Of a text's delta: ``ends`` is, for each of ``tokens``, the length of the reply's text once that
    token is in; ``kept`` are the tokens that ``proposer`` drafted and the target accepted; the others
    are the target's own. ``first``: when the reply's first token, phrase and piece of speech were
    made, on the clock of ``t_ms``. ``names``: what answers in this session. ``generated``: that
    its audio is made by machine, if there is a voice. ``listening``: the words of
    a transcript so far only show that somebody listens ("mm-hm"). ``resumes``: the item of the user's
    that this one goes on with, as one question. ``resume``: the token with which this session can be
    resumed, and for how many seconds it waits.
    """

    seq: int = 0
    t_ms: float = 0.0
    tokens: Span | None = None
    chars: Span | None = None
    round: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    proposer: str | None = None
    kept: Span | None = None
    ends: list[int] | None = None
    samples: Span | None = None
    words: list[Word] | None = None
    first: dict[str, float] | None = None
    ignored: list[Ignored] | None = None
    problem: str | None = None
    names: dict[str, str] | None = None
    generated: GeneratedAudio | None = None
    listening: bool | None = None
    resumes: str | None = None
    resume: dict[str, Any] | None = None


class Part(Sparse):
    """A piece of an item's content; in content-part events ``type`` lacks the prefix ``output_``."""

    type: Literal["input_text", "input_audio", "output_text", "output_audio", "text", "audio"]
    text: str | None = None
    transcript: str | None = None

    @model_serializer(mode="wrap")
    def _without_none(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A user's speech has ``"transcript": null`` until it is known: clients ask for the field."""
        none_of = ("text",) if self.type == "input_audio" else ("text", "transcript")
        return {k: v for k, v in handler(self).items() if v is not None or k not in none_of}


class _AnyItem(Sparse):
    id: str
    object: Literal["realtime.item"] = "realtime.item"
    type: str
    status: ItemStatus


Phase = Literal["commentary", "final_answer"]
"""What a reply's message is: said while functions are called, or the answer."""


class Item(_AnyItem):
    """A message of the conversation; ``phase`` is set once a reply's message has ended."""

    type: Literal["message"] = "message"
    role: Literal["system", "user", "assistant"]
    content: list[Part]
    phase: Phase | None = None


class FunctionCallItem(_AnyItem):
    """A call that the model made. ``incomplete``: it was cut off, or names no function."""

    type: Literal["function_call"] = "function_call"
    call_id: str
    name: str
    arguments: str


class FunctionOutputItem(_AnyItem):
    """The result of a call."""

    type: Literal["function_call_output"] = "function_call_output"
    call_id: str
    output: str


AnyItem = Item | FunctionCallItem | FunctionOutputItem


class Failure(Sparse):
    """Why a response or a transcription failed."""

    type: str
    code: str
    message: str


_log = logging.getLogger("specstream.server")
_ADDRESS = re.compile(r"(?:https?|wss?)://[^\s<>\"']*[^\s<>\"':,;.)]")
_BEHIND = "a server behind this one"


def told_to_callers(error: SpecstreamError) -> str:
    """What callers of a server are told: no addresses behind the server, and nothing of its keys.

    The log of the server gets what they aren't told.
    """
    if isinstance(error, ConfigError):
        told = "the server's settings don't work; its log says why"
    elif isinstance(error, RequestError):  # what it quotes is the caller's own
        told = re.sub(rf"^{_ADDRESS.pattern}", _BEHIND, str(error))
    else:
        told = _ADDRESS.sub(_BEHIND, str(error))
    if told != str(error):
        _log.warning("%s", error)
    return told


def _blamed(error: BaseException) -> ErrorType:
    """Whose fault an error is."""
    return "invalid_request_error" if isinstance(error, RequestError) else "server_error"


class ErrorDetail(BaseModel):
    """An error; ``event_id`` is that of the client's frame that caused it."""

    type: str
    code: str | None = None
    message: str
    param: str | None = None
    event_id: str | None = None

    @classmethod
    def of(cls, error: SpecstreamError, event_id: str | None = None) -> ErrorDetail:
        """Describe a refusal, or an error of the server."""
        if not isinstance(error, Refused):
            error = Refused(error.code, told_to_callers(error), type=_blamed(error))
        return cls(
            type=error.type,
            code=error.code,
            message=error.message,
            param=error.param,
            event_id=event_id or error.event_id,
        )


class StatusDetails(Sparse):
    """Why a response ended as it did."""

    type: EndStatus
    reason: Reason | None = None
    error: Failure | None = None

    @classmethod
    def of(cls, status: EndStatus, why: BaseException | Reason | None) -> StatusDetails:
        """Build the details of an end. Clients see the text of typed errors only; others are logged.

        ``why`` is what it failed with, or what cancelled it: an error if it was the server.
        """
        if status == "incomplete" and why is None:
            why = "max_output_tokens"
        if not isinstance(why, BaseException):
            return cls(type=status, reason=why)
        code, message = "server_error", "The response broke; see the server's log."
        if isinstance(why, SpecstreamError):
            code, message = why.code, told_to_callers(why)
        failure = Failure(type=_blamed(why), code=code, message=message)
        return cls(type=status, error=failure)


class CachedTokens(BaseModel):
    """Prompt tokens that were in the cache, by kind."""

    text_tokens: int = 0
    audio_tokens: int = 0
    image_tokens: int = 0


class InputTokens(CachedTokens):
    """Prompt tokens by kind, the cached ones included."""

    cached_tokens: int = 0
    cached_tokens_details: CachedTokens = CachedTokens()


class OutputTokens(BaseModel):
    """Reply tokens by kind; speech is made from text, so there are no audio tokens."""

    text_tokens: int = 0
    audio_tokens: int = 0


class Usage(BaseModel):
    """The token counts of a response."""

    total_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    input_token_details: InputTokens = InputTokens()
    output_token_details: OutputTokens = OutputTokens()

    @classmethod
    def of(cls, report: Report | None) -> Usage:
        """Take the token counts from a report; zeros without one, since clients expect numbers."""
        read, cached, written = 0, 0, 0
        if report is not None:
            read, cached = report.prompt_tokens, report.reused_tokens
            written = report.completion_tokens
        return cls(
            total_tokens=read + written,
            input_tokens=read,
            output_tokens=written,
            input_token_details=InputTokens(
                text_tokens=read,
                cached_tokens=cached,
                cached_tokens_details=CachedTokens(text_tokens=cached),
            ),
            output_token_details=OutputTokens(text_tokens=written),
        )


class ResponseEnd(BaseModel):
    """How a response has ended, if it has."""

    status: Status
    status_details: StatusDetails | None = None
    usage: Usage | None = None


class Response(ResponseEnd):
    """A response as ``response.created`` and ``response.done`` show it."""

    id: str
    object: Literal["realtime.response"] = "realtime.response"
    output: list[AnyItem] = []
    conversation_id: str | None = None
    output_modalities: list[Literal["text", "audio"]] = ["audio"]
    max_output_tokens: int | Literal["inf"] = "inf"
    audio: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None
