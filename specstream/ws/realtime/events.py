"""The frames that a server sends; the client reads them with the same models.

Every frame has an ``event_id``, and in ``specstream`` its number in the session's event log
(``seq``) and the session's clock (``t_ms``). Reading is lenient: unknown keys are ignored.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from specstream.errors import ProtocolError
from specstream.ws.realtime.resources import Extra, Item, Part, Response


class ServerEvent(BaseModel):
    """Any frame from a server."""

    type: str
    event_id: str = ""
    specstream: Extra = Field(default_factory=Extra)


class SessionCreated(ServerEvent):
    """The first frame of every connection."""

    type: Literal["session.created"] = "session.created"
    session: dict[str, Any]


class SessionUpdated(ServerEvent):
    """Answers ``session.update`` with all settings."""

    type: Literal["session.updated"] = "session.updated"
    session: dict[str, Any]


class ErrorDetail(BaseModel):
    """``event_id`` is the client's."""

    type: str
    code: str | None = None
    message: str
    param: str | None = None
    event_id: str | None = None


class ErrorEvent(ServerEvent):
    """Something could not be done; the session goes on."""

    type: Literal["error"] = "error"
    error: ErrorDetail


class ItemAdded(ServerEvent):
    """An item entered the conversation."""

    type: Literal["conversation.item.added"] = "conversation.item.added"
    item: Item
    previous_item_id: str | None = None


class ItemDone(ServerEvent):
    """An item is final."""

    type: Literal["conversation.item.done"] = "conversation.item.done"
    item: Item
    previous_item_id: str | None = None


class ItemRetrieved(ServerEvent):
    """Answers ``conversation.item.retrieve``."""

    type: Literal["conversation.item.retrieved"] = "conversation.item.retrieved"
    item: Item


class ItemDeleted(ServerEvent):
    """Answers ``conversation.item.delete``."""

    type: Literal["conversation.item.deleted"] = "conversation.item.deleted"
    item_id: str


class ItemTruncated(ServerEvent):
    """Answers ``conversation.item.truncate``."""

    type: Literal["conversation.item.truncated"] = "conversation.item.truncated"
    item_id: str
    content_index: int
    audio_end_ms: int


class ResponseCreated(ServerEvent):
    """A response begins."""

    type: Literal["response.created"] = "response.created"
    response: Response


class ResponseDone(ServerEvent):
    """A response has ended, however it ended; nothing of it follows."""

    type: Literal["response.done"] = "response.done"
    response: Response


class _OutputEvent(ServerEvent):
    response_id: str
    output_index: int = 0


class OutputItemAdded(_OutputEvent):
    """The response's item begins."""

    type: Literal["response.output_item.added"] = "response.output_item.added"
    item: Item


class OutputItemDone(_OutputEvent):
    """The response's item is final."""

    type: Literal["response.output_item.done"] = "response.output_item.done"
    item: Item


class _ContentEvent(_OutputEvent):
    item_id: str
    content_index: int = 0


class ContentPartAdded(_ContentEvent):
    """The item's content begins."""

    type: Literal["response.content_part.added"] = "response.content_part.added"
    part: Part


class ContentPartDone(_ContentEvent):
    """The item's content is final."""

    type: Literal["response.content_part.done"] = "response.content_part.done"
    part: Part


class TextDelta(_ContentEvent):
    """New text, as the model wrote it."""

    type: Literal["response.output_text.delta"] = "response.output_text.delta"
    delta: str


class TextDone(_ContentEvent):
    """All of the text."""

    type: Literal["response.output_text.done"] = "response.output_text.done"
    text: str


class TranscriptDelta(_ContentEvent):
    """New spoken text: what the model wrote, without tags."""

    type: Literal["response.output_audio_transcript.delta"] = (
        "response.output_audio_transcript.delta"
    )
    delta: str


class TranscriptDone(_ContentEvent):
    """All of the spoken text."""

    type: Literal["response.output_audio_transcript.done"] = "response.output_audio_transcript.done"
    transcript: str


class AudioDelta(_ContentEvent):
    """New audio, base64."""

    type: Literal["response.output_audio.delta"] = "response.output_audio.delta"
    delta: str


class AudioDone(_ContentEvent):
    """No more audio."""

    type: Literal["response.output_audio.done"] = "response.output_audio.done"


class AvatarDelta(_ContentEvent):
    """One `specstream.types.AvatarCue`, its samples at 24 kHz."""

    type: Literal["specstream.avatar.delta"] = "specstream.avatar.delta"
    cue: dict[str, Any]


class PromptDelta(_ContentEvent):
    """One `specstream.types.ScenePrompt`."""

    type: Literal["specstream.prompt.delta"] = "specstream.prompt.delta"
    shot: dict[str, Any]


class ReasoningDelta(_ContentEvent):
    """New text that the model wrote for itself: no part of the item, never spoken."""

    type: Literal["specstream.reasoning.delta"] = "specstream.reasoning.delta"
    delta: str


class RevokeEvent(_ContentEvent):
    """What ``stage`` made from the reply's text at or past ``from_char`` is taken back."""

    type: Literal["specstream.revoke"] = "specstream.revoke"
    stage: str
    from_char: int


class ReportEvent(_OutputEvent):
    """How the generation went; comes right before ``response.done``."""

    type: Literal["specstream.report"] = "specstream.report"
    report: dict[str, Any]


def _leaves(cls: type[ServerEvent]) -> list[type[ServerEvent]]:
    below = cls.__subclasses__()
    return [leaf for sub in below for leaf in _leaves(sub)] if below else [cls]


_KNOWN = {cls.model_fields["type"].default: cls for cls in _leaves(ServerEvent)}


def parse_server_event(frame: str | bytes) -> ServerEvent:
    """Read one frame; a type that we don't know comes back as a plain `ServerEvent`.

    Raises:
        ProtocolError: not JSON, or not of its type's shape.
    """
    try:
        data = json.loads(frame)
        return _KNOWN.get(data["type"], ServerEvent).model_validate(data)
    except (ValueError, KeyError, TypeError, RecursionError, ValidationError) as error:
        raise ProtocolError(f"the server sent a frame that can't be read: {error}") from error
