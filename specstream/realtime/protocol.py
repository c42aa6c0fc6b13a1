"""The frames that a client may send; reading is strict.

The wire is the OpenAI Realtime protocol (GA) over WebSocket: one JSON object per text frame, our
extensions in a ``specstream`` field. ``docs/reference/realtime.md`` documents it,
`specstream.realtime.events` has the frames that a server sends.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal, get_args

from pydantic import ConfigDict, Field, PrivateAttr

from specstream.realtime.input_settings import NO_TOOLS, leave_out
from specstream.realtime.items import NewItem
from specstream.realtime.settings import ResponseSettings, SessionSettings
from specstream.realtime.wire import MAX_EVENT, Ignored, Refused, Strict, validate


class ClientEvent(Strict):
    """Any frame from a client; ``event_id`` comes back in an ``error`` that it causes."""

    event_id: str | None = Field(default=None, max_length=512)


class SessionUpdate(ClientEvent):
    """Change the settings that are named; ``session.updated`` answers with all settings.

    ``ignored`` lists the settings that this server can't serve; ``session`` is without them.
    """

    type: Literal["session.update"]
    session: SessionSettings
    _ignored: list[Ignored] = PrivateAttr(default_factory=list)

    @property
    def ignored(self) -> list[Ignored]:
        """The settings that the answer must list as ignored."""
        return self._ignored


class InputAudio(ClientEvent):
    """An event of the input audio buffer, on a server that takes no audio input and ignores it."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["input_audio_buffer.append", "input_audio_buffer.commit", "input_audio_buffer.clear"]


class AudioAppend(ClientEvent):
    """Microphone audio, base64, in the session's input format."""

    type: Literal["input_audio_buffer.append"]
    audio: str


class AudioCommit(ClientEvent):
    """End the turn: the audio in the buffer becomes a user's item."""

    type: Literal["input_audio_buffer.commit"]


class AudioClear(ClientEvent):
    """Discard the audio in the buffer."""

    type: Literal["input_audio_buffer.clear"]


class ItemCreate(ClientEvent):
    """Add an item after ``previous_item_id``: null appends, ``"root"`` puts it first."""

    type: Literal["conversation.item.create"]
    item: NewItem
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
    """Cut a spoken item to the words that were heard by ``audio_end_ms``."""

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


def _by_name(*models: type[ClientEvent]) -> dict[str, type[ClientEvent]]:
    return {name: model for model in models for name in get_args(model.model_fields["type"].annotation)}


KNOWN = _by_name(
    *(SessionUpdate, ItemCreate, ItemDelete, ItemRetrieve, ItemTruncate),
    *(ResponseCreate, ResponseCancel, InputAudio),
)
"""The models of events, by the name in ``type``."""
# Instead of `InputAudio`, on a server that takes audio input.
_HEARD = _by_name(AudioAppend, AudioCommit, AudioClear)
_WEBRTC_ONLY = "output_audio_buffer.clear"

_MAX_DEPTH = 64
_HEAD = 512  # characters at both ends of a long frame where its type is looked for
_APPENDS = re.compile(r'"type"\s*:\s*"input_audio_buffer\.append"')
MAX_STRUCTURE = 64 << 10
"""Maximum characters of a frame outside of its strings: the cost of parsing grows with these."""


def parse_client_event(frame: str, *, tools: bool = False, hears: bool = False) -> ClientEvent:
    """Read one text frame; ``tools``: the model can call tools; ``hears``: the server takes audio.

    Raises:
        Refused: malformed JSON, an unknown type or field, a wrong value, or something that this
            server can't do. Its ``event_id`` is the frame's, if it had one.
    """
    if len(frame) > MAX_EVENT and not _APPENDS.search(frame[:_HEAD] + " " + frame[-_HEAD:]):
        message = f"Only audio may have more than {MAX_EVENT} characters."
        raise Refused("frame_too_large", message)
    if len(frame) > MAX_STRUCTURE and structure(frame) > MAX_STRUCTURE:
        message = f"A frame has at most {MAX_STRUCTURE} characters outside of its strings."
        raise Refused("invalid_json", message)
    try:
        data = json.loads(frame)
        # Half a surrogate pair, or too deep nesting, can be parsed but not be serialized again.
        json.dumps(data, ensure_ascii=False).encode()
        _check_depth(data, _MAX_DEPTH)
    except (ValueError, RecursionError) as error:
        raise Refused("invalid_json", f"The frame is not JSON: {error}.") from None
    if not isinstance(data, dict):
        raise Refused("invalid_json", "A frame is one JSON object.")
    event_id = data.get("event_id") if isinstance(data.get("event_id"), str) else None
    ignored: list[Ignored] = []
    try:
        model = _model_of(data.get("type"), hears)
        if model is SessionUpdate and isinstance(data.get("session"), dict):
            data["session"], ignored = leave_out(data["session"], tools=tools, hears=hears)
        event = validate(model, data)
    except Refused as refusal:
        refusal.event_id = event_id
        raise
    if isinstance(event, SessionUpdate):
        event._ignored = ignored
    if isinstance(event, ResponseCreate) and event.response and event.response.tools and not tools:
        message = f"Invalid for 'response.tools': {NO_TOOLS}; leave the list empty."
        raise Refused("invalid_value", message, param="response.tools", event_id=event_id)
    return event


def structure(text: str) -> int:
    """Count the characters of JSON outside of strings: the cost of parsing grows with these."""
    return sum(map(len, text.replace("\\\\", "").replace('\\"', "").split('"')[::2]))


def _check_depth(value: Any, left: int) -> None:
    if left == 0:
        raise ValueError(f"nested more than {_MAX_DEPTH} deep")
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_depth(inner, left - 1)


def _model_of(kind: Any, hears: bool) -> type[ClientEvent]:
    if kind is None:
        message = "Missing required parameter: 'type'."
        raise Refused("missing_required_parameter", message, param="type")
    name = str(kind)
    if name == _WEBRTC_ONLY:
        message = "Here the client plays the audio: drop it there, then cancel or truncate."
        raise Refused("output_audio_buffer_not_supported", message, param="type")
    if name not in KNOWN:
        message = f"Unknown event type '{name[:80]}'; known: {', '.join(KNOWN)}."
        raise Refused("invalid_value", message, param="type")
    return _HEARD[name] if hears and name in _HEARD else KNOWN[name]
