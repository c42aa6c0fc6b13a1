"""The frames that a client may send, read strictly.

The wire is the OpenAI Realtime protocol (GA) over WebSocket: one JSON object per text frame. What
is our own rides in a ``specstream`` field. No sockets and no torch in here; ``docs/protocol.md``
has the whole of it, `specstream.ws.realtime.events` what a server sends.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    StringConstraints,
    model_validator,
)

from specstream.ws.realtime.settings import ResponseSettings, SessionSettings, leave_out
from specstream.ws.realtime.wire import Ignored, Refused, Strict, validate

__all__ = [
    "MAX_STRUCTURE",
    "ClientEvent",
    "InputAudio",
    "ItemCreate",
    "ItemDelete",
    "ItemInput",
    "ItemReference",
    "ItemRetrieve",
    "ItemTruncate",
    "ResponseCancel",
    "ResponseCreate",
    "SessionUpdate",
    "parse_client_event",
    "parse_input",
]

_Id = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
_PARTS = {"system": "input_text", "user": "input_text", "assistant": "output_text"}


class PartInput(Strict):
    """One piece of a message; only text can be put into the conversation."""

    type: str
    text: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _only_text(cls, data: Any) -> Any:
        kind = data.get("type") if isinstance(data, dict) else None
        if kind in ("input_audio", "input_image", "output_audio"):
            raise ValueError(f"{kind} content can't be put into the conversation here; send text")
        return data


class ItemInput(Strict):
    """A message as a client writes it."""

    type: Literal["message"]
    role: Literal["system", "user", "assistant"]
    content: list[PartInput]
    id: _Id | None = None
    object: Literal["realtime.item"] | None = None
    status: Literal["completed", "incomplete", "in_progress"] | None = None

    @model_validator(mode="after")
    def _parts_fit_role(self) -> ItemInput:
        wanted = _PARTS[self.role]
        if any(part.type != wanted or part.text is None for part in self.content):
            raise ValueError(
                f"every part of a message with role {self.role!r} is {wanted} with text"
            )
        return self

    @property
    def text(self) -> str:
        """All parts laid end to end."""
        return "".join(part.text or "" for part in self.content)


class ItemReference(Strict):
    """An item of the conversation, named instead of repeated."""

    type: Literal["item_reference"]
    id: str


class ClientEvent(Strict):
    """Any frame from a client; ``event_id`` comes back in an ``error`` that it causes."""

    event_id: str | None = Field(default=None, max_length=512)


class SessionUpdate(ClientEvent):
    """Change the settings that are named; ``session.updated`` answers with all of them.

    ``ignored`` are those that this server can't serve; ``session`` is without them.
    """

    type: Literal["session.update"]
    session: SessionSettings
    _ignored: list[Ignored] = PrivateAttr(default_factory=list)

    @property
    def ignored(self) -> list[Ignored]:
        """What the answer must mention."""
        return self._ignored

    @model_validator(mode="wrap")
    @classmethod
    def _only_what_is_served(cls, data: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        session = data.get("session") if isinstance(data, dict) else None
        if not isinstance(session, dict):
            return read(data)
        served, ignored = leave_out(session)
        event = read({**data, "session": served})
        event._ignored = ignored
        return event


class InputAudio(ClientEvent):
    """Microphone audio, or what to do with it. Nobody listens here: it is read over."""

    model_config = ConfigDict(extra="ignore")

    type: Literal[
        "input_audio_buffer.append", "input_audio_buffer.commit", "input_audio_buffer.clear"
    ]


class ItemCreate(ClientEvent):
    """Add a message after ``previous_item_id``: null appends, ``"root"`` puts it first."""

    type: Literal["conversation.item.create"]
    item: ItemInput
    previous_item_id: str | None = None


class ItemDelete(ClientEvent):
    """Remove an item."""

    type: Literal["conversation.item.delete"]
    item_id: str


class ItemRetrieve(ClientEvent):
    """Ask for an item as the server has it."""

    type: Literal["conversation.item.retrieve"]
    item_id: str


class ItemTruncate(ClientEvent):
    """Cut a spoken item to what was heard."""

    type: Literal["conversation.item.truncate"]
    item_id: str
    content_index: int = Field(ge=0)
    audio_end_ms: int = Field(ge=0)


class ResponseCreate(ClientEvent):
    """Ask for a response."""

    type: Literal["response.create"]
    response: ResponseSettings | None = None


class ResponseCancel(ClientEvent):
    """Stop a response; without an id, the one that writes to the conversation."""

    type: Literal["response.cancel"]
    response_id: str | None = None


_KNOWN: dict[str, type[ClientEvent]] = {
    "session.update": SessionUpdate,
    "conversation.item.create": ItemCreate,
    "conversation.item.delete": ItemDelete,
    "conversation.item.retrieve": ItemRetrieve,
    "conversation.item.truncate": ItemTruncate,
    "response.create": ResponseCreate,
    "response.cancel": ResponseCancel,
    "input_audio_buffer.append": InputAudio,
    "input_audio_buffer.commit": InputAudio,
    "input_audio_buffer.clear": InputAudio,
}
_WEBRTC_ONLY = "output_audio_buffer.clear"

_MAX_DEPTH = 64
MAX_STRUCTURE = 64 << 10
"""Characters of a frame outside of its strings: what reading it takes grows with these."""


def parse_client_event(frame: str) -> ClientEvent:
    """Read one text frame.

    Raises:
        Refused: malformed JSON, an unknown type or field, a wrong value, or something that this
            server can't do. Its ``event_id`` is the frame's, if it had one.
    """
    if len(frame) > MAX_STRUCTURE and _structure(frame) > MAX_STRUCTURE:
        message = f"A frame has at most {MAX_STRUCTURE} characters outside of its strings."
        raise Refused("invalid_json", message)
    try:
        data = json.loads(frame)
        # Half a surrogate pair, or what nests too deep, can be read but not be sent back.
        json.dumps(data, ensure_ascii=False).encode()
        _check_depth(data, _MAX_DEPTH)
    except (ValueError, RecursionError) as error:
        raise Refused("invalid_json", f"The frame is not JSON: {error}.") from None
    if not isinstance(data, dict):
        raise Refused("invalid_json", "A frame is one JSON object.")
    event_id = data.get("event_id") if isinstance(data.get("event_id"), str) else None
    try:
        return validate(_model_of(data.get("type")), data)
    except Refused as refusal:
        refusal.event_id = event_id
        raise


def _structure(frame: str) -> int:
    """How many characters lie outside of the strings."""
    return sum(map(len, frame.replace("\\\\", "").replace('\\"', "").split('"')[::2]))


def _check_depth(value: Any, left: int) -> None:
    if left == 0:
        raise ValueError(f"nested more than {_MAX_DEPTH} deep")
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_depth(inner, left - 1)


def _model_of(kind: Any) -> type[ClientEvent]:
    if kind is None:
        message = "Missing required parameter: 'type'."
        raise Refused("missing_required_parameter", message, param="type")
    name = str(kind)
    if name == _WEBRTC_ONLY:
        message = "Here the client plays the audio: drop it there, then cancel or truncate."
        raise Refused("output_audio_buffer_not_supported", message, param="type")
    if name not in _KNOWN:
        message = f"Unknown event type '{name[:80]}'; known: {', '.join(_KNOWN)}."
        raise Refused("invalid_value", message, param="type")
    return _KNOWN[name]


def parse_input(items: list[dict[str, Any]]) -> list[ItemInput | ItemReference]:
    """Read ``response.input``: messages, and references to items of the conversation.

    Raises:
        Refused: an entry is neither.
    """
    parsed: list[ItemInput | ItemReference] = []
    for index, item in enumerate(items):
        at = f"response.input[{index}]"
        if item.get("type") == "item_reference":
            parsed.append(validate(ItemReference, item, at=at))
        else:
            parsed.append(validate(ItemInput, item, at=at))
    return parsed
