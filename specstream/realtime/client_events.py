"""The events that a client reads from a reply, and their translation from the wire."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, get_args

import specstream.realtime.events as ev
from specstream.errors import ProtocolError
from specstream.realtime.resources import EndStatus, FunctionCallItem, Item, Response, Usage, Word
from specstream.types import AvatarCue, CallProblem, ScenePrompt, Span, ToolCall


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text; in an audio reply the spoken text, without tags.

    ``tokens`` and ``chars`` are its place in the reply as the model wrote it; ``drafted`` and
    ``accepted`` belong to its ``round``, which may have more deltas.
    """

    text: str
    tokens: Span
    chars: Span
    round: int
    drafted: int
    accepted: int
    t_ms: float


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """New reasoning text; not part of the reply."""

    text: str
    t_ms: float


@dataclass(frozen=True, slots=True)
class TextPreview:
    """Drafted text behind the text so far; the target may reject it.

    Void at the next `TextDelta`, `TextPreview` or `Done`. ``chars`` and ``tokens`` are the place that
    the text would have in the reply as the model wrote it.
    """

    text: str
    tokens: Span
    chars: Span
    round: int
    t_ms: float


@dataclass(frozen=True, slots=True)
class AudioDelta:
    """New audio: signed 16-bit little-endian mono at 24 kHz.

    ``samples`` is its place in the reply's audio; ``words`` are those whose times became known.
    """

    pcm: bytes
    samples: Span
    words: tuple[Word, ...]
    t_ms: float


@dataclass(frozen=True, slots=True)
class AvatarDelta:
    """One cue; its ``samples`` are at 24 kHz. It may come before or after its audio."""

    cue: AvatarCue
    t_ms: float


@dataclass(frozen=True, slots=True)
class PromptDelta:
    """One shot, or a new revision of one."""

    shot: ScenePrompt
    t_ms: float


@dataclass(frozen=True, slots=True)
class ToolDelta:
    """New JSON text of the arguments of call ``call_id``."""

    call_id: str
    arguments: str
    t_ms: float


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """A call is complete, or was cut off (``call.problem``).

    Run the function, give its result to `RealtimeClient.add_result`, and ask for the next reply with
    ``respond(None)`` once this reply is done.
    """

    call: ToolCall
    item_id: str
    t_ms: float


@dataclass(frozen=True, slots=True)
class Revoked:
    """All output of ``stage`` that was made from the reply's text at or past ``from_char`` is void."""

    stage: str
    from_char: int
    t_ms: float


@dataclass(frozen=True, slots=True)
class RealtimeReport:
    """The generation's figures, under the names that the command line uses."""

    figures: dict[str, Any]
    t_ms: float


@dataclass(frozen=True, slots=True)
class Problem:
    """An error on the server that does not end the reply."""

    code: str
    message: str
    t_ms: float


@dataclass(frozen=True, slots=True)
class Done:
    """The end of the reply.

    ``text`` is the part that the conversation keeps, ``reason`` is set when the reply was cancelled or
    cut short, ``error`` (code and message) when it failed. ``item_id`` is that of the text, or of the
    first call of a reply that is calls only.
    """

    status: EndStatus
    text: str
    item_id: str | None
    reason: str | None
    error: tuple[str, str] | None
    usage: Usage | None
    t_ms: float

    @classmethod
    def of(cls, response: Response, t_ms: float) -> Done:
        """Read ``response.done``."""
        said = next((item for item in response.output if isinstance(item, Item)), None)
        item = said or (response.output[0] if response.output else None)
        parts = said.content if said is not None else []
        details = response.status_details
        failure = details.error if details is not None else None
        return cls(
            status="failed" if response.status == "in_progress" else response.status,
            text="".join(part.transcript or part.text or "" for part in parts),
            item_id=item.id if item is not None else None,
            reason=details.reason if details is not None else None,
            error=(failure.code, failure.message) if failure is not None else None,
            usage=response.usage,
            t_ms=t_ms,
        )


RealtimeEvent = (
    TextDelta
    | ReasoningDelta
    | TextPreview
    | AudioDelta
    | AvatarDelta
    | PromptDelta
    | ToolDelta
    | ToolCalled
    | Revoked
    | RealtimeReport
    | Problem
    | Done
)


def translate(event: ev.ServerEvent) -> RealtimeEvent | None:
    """Translate a wire event for the reader; None for an event that the reader does not get.

    Raises:
        ProtocolError: audio is not base64.
    """
    at = event.specstream
    tokens, chars, round = at.tokens or Span(0, 0), at.chars or Span(0, 0), at.round or 0
    match event:
        case ev.TextDeltaEvent(type="specstream.reasoning.delta", delta=text):
            return ReasoningDelta(text, at.t_ms)
        case ev.TextDeltaEvent(delta=text):
            made = (round, at.drafted or 0, at.accepted or 0)
            return TextDelta(text, tokens, chars, *made, at.t_ms)
        case ev.PreviewEvent(text=text):
            return TextPreview(text, tokens, chars, round, at.t_ms)
        case ev.AudioDeltaEvent(delta=data):
            pcm = _decoded(data)
            samples = at.samples or Span(0, len(pcm) // 2)
            return AudioDelta(pcm, samples, tuple(at.words or ()), at.t_ms)
        case ev.AvatarDeltaEvent(cue=cue):
            return AvatarDelta(cue, at.t_ms)
        case ev.PromptDeltaEvent(shot=shot):
            return PromptDelta(shot, at.t_ms)
        case ev.ArgumentsDelta(call_id=call_id, delta=arguments):
            return ToolDelta(call_id, arguments, at.t_ms)
        case ev.OutputItemEvent(type="response.output_item.done", item=FunctionCallItem() as item):
            problem: CallProblem = "cut_off" if item.status == "incomplete" else ""
            problem = next((p for p in get_args(CallProblem) if p == at.problem), problem)
            call = ToolCall(item.call_id, item.name, item.arguments, problem)
            return ToolCalled(call, item.id, at.t_ms)
        case ev.RevokeEvent(stage=stage, from_char=from_char):
            return Revoked(stage, from_char, at.t_ms)
        case ev.ReportEvent(report=report):
            return RealtimeReport(report, at.t_ms)
        case ev.ResponseEvent(type="response.done", response=response):
            return Done.of(response, at.t_ms)
        # A cancel that crosses the end of the reply is no problem.
        case ev.ErrorEvent(error=error) if error.code != "response_cancel_not_active":
            return Problem(error.code or "error", error.message, at.t_ms)
    return None


def _decoded(data: str) -> bytes:
    """Decode base64 audio."""
    try:
        return base64.b64decode(data)
    except ValueError as error:
        raise ProtocolError(f"the server sent audio that is not base64: {error}") from error
