"""The things that frames are about: items, responses, usage, and where content came from."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from specstream.errors import SpecstreamError
from specstream.metrics import Report
from specstream.types import Span
from specstream.ws.realtime.wire import Ignored, Sparse

__all__ = [
    "EndStatus",
    "Extra",
    "Item",
    "Part",
    "Response",
    "Status",
    "StatusDetails",
    "Usage",
    "Word",
]

EndStatus = Literal["completed", "cancelled", "incomplete", "failed"]
Status = Literal["in_progress"] | EndStatus
Reason = Literal["client_cancelled", "max_output_tokens"]
_REASONS: dict[EndStatus, Reason] = {
    "cancelled": "client_cancelled",
    "incomplete": "max_output_tokens",
}


class Word(Sparse):
    """A spoken word: where it lies in the turn's audio (24 kHz) and in the reply's text."""

    text: str
    samples: Span
    chars: Span


class Extra(Sparse):
    """The ``specstream`` field: where a frame stands, and where its content came from.

    ``tokens`` and ``chars`` are ranges in the reply as the model wrote it, ``samples`` a range in
    the turn's audio at 24 kHz; all are half-open. ``ignored`` is what a client sent in vain.
    """

    seq: int = 0
    t_ms: float = 0.0
    tokens: Span | None = None
    chars: Span | None = None
    round: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    samples: Span | None = None
    words: list[Word] | None = None
    ignored: list[Ignored] | None = None


class Part(Sparse):
    """A piece of an item's content; in content-part events ``type`` lacks its prefix."""

    type: Literal["input_text", "output_text", "output_audio", "text", "audio"]
    text: str | None = None
    transcript: str | None = None


class Item(Sparse):
    """A message of the conversation."""

    id: str
    object: Literal["realtime.item"] = "realtime.item"
    type: Literal["message"] = "message"
    status: Literal["completed", "incomplete", "in_progress"]
    role: Literal["system", "user", "assistant"]
    content: list[Part]


class Failure(Sparse):
    """Why a response failed."""

    type: str
    code: str
    message: str


class StatusDetails(Sparse):
    """Why a response ended as it did."""

    type: EndStatus
    reason: Reason | None = None
    error: Failure | None = None

    @classmethod
    def of(cls, status: EndStatus, error: BaseException | None) -> StatusDetails:
        """Only what was raised on purpose is told to the client; the rest is for the log.

        A cancelled response has an error only when the server cancelled it.
        """
        failure = None
        cancelled_here = status == "cancelled" and error is not None
        if status == "failed" or cancelled_here:
            failure = Failure(
                type="server_error",
                code="server_error",
                message="The response broke; see the server's log.",
            )
            if isinstance(error, SpecstreamError):
                failure.code, failure.message = error.code, str(error)
        return cls(
            type=status, reason=None if cancelled_here else _REASONS.get(status), error=failure
        )


class CachedTokens(BaseModel):
    """Tokens of the prompt that were still in the cache, by kind."""

    text_tokens: int = 0
    audio_tokens: int = 0
    image_tokens: int = 0


class InputTokens(BaseModel):
    """Tokens of the prompt, by kind; the cached ones are among them."""

    text_tokens: int = 0
    audio_tokens: int = 0
    image_tokens: int = 0
    cached_tokens: int = 0
    cached_tokens_details: CachedTokens = CachedTokens()


class OutputTokens(BaseModel):
    """Tokens of the reply, by kind. Speech is made from text, so there are no audio tokens."""

    text_tokens: int = 0
    audio_tokens: int = 0


class Usage(BaseModel):
    """How many tokens a response took."""

    total_tokens: int
    input_tokens: int
    output_tokens: int
    input_token_details: InputTokens
    output_token_details: OutputTokens

    @classmethod
    def of(cls, report: Report | None) -> Usage:
        """The report's tokens under the protocol's names; without one nothing was read or written.

        Clients read the counts of every ended response, also of one that never began.
        """
        if report is None:
            inputs, outputs = InputTokens(), OutputTokens()
            return cls(
                total_tokens=0,
                input_tokens=0,
                output_tokens=0,
                input_token_details=inputs,
                output_token_details=outputs,
            )
        written = len(report.token_ids)
        return cls(
            total_tokens=report.prompt_tokens + written,
            input_tokens=report.prompt_tokens,
            output_tokens=written,
            input_token_details=InputTokens(
                text_tokens=report.prompt_tokens,
                cached_tokens=report.reused_tokens,
                cached_tokens_details=CachedTokens(text_tokens=report.reused_tokens),
            ),
            output_token_details=OutputTokens(text_tokens=written),
        )


class Response(BaseModel):
    """A response as ``response.created`` and ``response.done`` show it."""

    id: str
    object: Literal["realtime.response"] = "realtime.response"
    status: Status
    status_details: StatusDetails | None = None
    output: list[Item] = []
    conversation_id: str | None = None
    output_modalities: list[Literal["text", "audio"]]
    max_output_tokens: int | Literal["inf"] = "inf"
    audio: dict[str, Any] | None = None
    usage: Usage | None = None
    metadata: dict[str, str] | None = None
