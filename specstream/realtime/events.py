"""The frames that a server sends; the client reads them with the same models.

Every frame has an ``event_id``, and in ``specstream`` its number in the session's event log
(``seq``) and the session's clock (``t_ms``). Reading is lenient: unknown keys are ignored.
"""

from __future__ import annotations

import json
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field

from specstream.errors import ProtocolError
from specstream.realtime.resources import AnyItem, ErrorDetail, Extra, Failure, Part, Response
from specstream.types import AvatarCue, ScenePrompt


class ServerEvent(BaseModel):
    """Any frame from a server."""

    type: str
    event_id: str = ""
    specstream: Extra = Field(default_factory=Extra)


class SessionEvent(ServerEvent):
    """All settings: the first frame of every connection, and the answer to ``session.update``."""

    type: Literal["session.created", "session.updated"]
    session: dict[str, Any]


class ResumedEvent(ServerEvent):
    """The session goes on at a new socket; its numbered events follow.

    ``received``: how many frames of the client have come so far, without acknowledgements.
    ``specstream.seq`` repeats the number that the client named.
    """

    type: Literal["specstream.resumed"] = "specstream.resumed"
    received: int


class ErrorEvent(ServerEvent):
    """Something could not be done; the session goes on."""

    type: str = "error"
    error: ErrorDetail


class ItemEvent(ServerEvent):
    """An item entered the conversation, or is final."""

    type: Literal["conversation.item.added", "conversation.item.done"]
    item: AnyItem
    previous_item_id: str | None = None

    @classmethod
    def both(cls, item: AnyItem, previous_item_id: str | None) -> list[ItemEvent]:
        """Return the events of an item that is final as it enters."""
        fields: dict[str, Any] = {"item": item, "previous_item_id": previous_item_id}
        added = cls(type="conversation.item.added", **fields)
        return [added, cls(type="conversation.item.done", **fields)]


class ItemRetrieved(ServerEvent):
    """Answers ``conversation.item.retrieve``."""

    type: str = "conversation.item.retrieved"
    item: AnyItem


class ItemDeleted(ServerEvent):
    """Answers ``conversation.item.delete``."""

    type: str = "conversation.item.deleted"
    item_id: str


class ItemTruncated(ServerEvent):
    """Answers ``conversation.item.truncate``."""

    type: str = "conversation.item.truncated"
    item_id: str
    content_index: int
    audio_end_ms: int


class InputSpeechStarted(ServerEvent):
    """A user's turn begins; it will become item ``item_id``. Times count the audio appended."""

    type: str = "input_audio_buffer.speech_started"
    audio_start_ms: int
    item_id: str


class InputSpeechStopped(ServerEvent):
    """The turn is over; the item follows."""

    type: str = "input_audio_buffer.speech_stopped"
    audio_end_ms: int
    item_id: str


class InputCommitted(ServerEvent):
    """The turn's audio became an item."""

    type: str = "input_audio_buffer.committed"
    item_id: str
    previous_item_id: str | None = None


class InputCleared(ServerEvent):
    """Answers ``input_audio_buffer.clear``."""

    type: str = "input_audio_buffer.cleared"


class _TranscriptionEvent(ServerEvent):
    item_id: str
    content_index: int = 0


class TranscriptionDelta(_TranscriptionEvent):
    """New words of a transcript, perhaps while the user speaks; they are unlikely to change."""

    type: str = "conversation.item.input_audio_transcription.delta"
    delta: str


class TranscriptionCompleted(_TranscriptionEvent):
    """The whole transcript of a turn; it may differ from the deltas."""

    type: str = "conversation.item.input_audio_transcription.completed"
    transcript: str
    usage: dict[str, Any] = {}


class TranscriptionFailed(_TranscriptionEvent):
    """The recogniser broke or took too long; the item stays without text."""

    type: str = "conversation.item.input_audio_transcription.failed"
    error: Failure


class TranscriptionGuess(_TranscriptionEvent):
    """The whole transcript so far, while the user speaks; any of it may change."""

    type: str = "specstream.hearing"
    transcript: str


class ResponseEvent(ServerEvent):
    """A response begins, or has ended; no event of the response follows ``response.done``."""

    type: Literal["response.created", "response.done"]
    response: Response


class _OutputEvent(ServerEvent):
    response_id: str
    output_index: int = 0


class OutputItemEvent(_OutputEvent):
    """An item of the response begins, or is final."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    item: AnyItem


class ReportEvent(_OutputEvent):
    """The generation's figures; comes right before ``response.done``."""

    type: str = "specstream.report"
    report: dict[str, Any]


class _ContentEvent(_OutputEvent):
    item_id: str
    content_index: int = 0


class ContentPartEvent(_ContentEvent):
    """The item's content begins, or is final."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    part: Part


class TextDeltaEvent(_ContentEvent):
    """New text: as the model wrote it, as it is spoken (without tags), or reasoning."""

    type: Literal[
        "response.output_text.delta",
        "response.output_audio_transcript.delta",
        "specstream.reasoning.delta",
    ]
    delta: str


class PreviewEvent(_ContentEvent):
    """Text that was drafted behind the text sent so far; the next event of the text replaces it."""

    type: str = "specstream.preview"
    text: str


class ArgumentsDelta(_OutputEvent):
    """New JSON text of a function call's arguments."""

    type: str = "response.function_call_arguments.delta"
    item_id: str
    call_id: str
    delta: str


class ArgumentsDone(_OutputEvent):
    """All of a function call's arguments."""

    type: str = "response.function_call_arguments.done"
    item_id: str
    call_id: str
    name: str = ""
    arguments: str


class TextDone(_ContentEvent):
    """All of the text."""

    type: str = "response.output_text.done"
    text: str


class TranscriptDone(_ContentEvent):
    """All of the spoken text."""

    type: str = "response.output_audio_transcript.done"
    transcript: str


class AudioDeltaEvent(_ContentEvent):
    """New audio, base64."""

    type: str = "response.output_audio.delta"
    delta: str


class AudioDone(_ContentEvent):
    """No more audio."""

    type: str = "response.output_audio.done"


class AvatarDeltaEvent(_ContentEvent):
    """One cue, its samples at 24 kHz."""

    type: str = "specstream.avatar.delta"
    cue: AvatarCue


class PromptDeltaEvent(_ContentEvent):
    """One shot."""

    type: str = "specstream.prompt.delta"
    shot: ScenePrompt


class RevokeEvent(_ContentEvent):
    """All output of ``stage`` that was made from the reply's text at or past ``from_char`` is void."""

    type: str = "specstream.revoke"
    stage: str
    from_char: int


def _by_type(cls: type[ServerEvent]) -> dict[str, type[ServerEvent]]:
    field = cls.model_fields["type"]
    names = get_args(field.annotation) if field.is_required() else (field.default,)
    known = dict.fromkeys(names, cls)
    for sub in cls.__subclasses__():
        known |= _by_type(sub)
    return known


KNOWN = _by_type(ServerEvent)
"""The models of events, by the name in ``type``."""


def parse_server_event(frame: str | bytes) -> ServerEvent:
    """Read one frame; an unknown type is read as a plain `ServerEvent`.

    Raises:
        ProtocolError: not JSON, or not of its type's shape.
    """
    try:
        data = json.loads(frame)
        return KNOWN.get(data["type"], ServerEvent).model_validate(data)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProtocolError(f"the server sent a frame that can't be read: {error}") from error
