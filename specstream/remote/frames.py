"""Messages of ``specstream.stage.v1``: frames as JSON text, audio as a binary header and PCM."""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from specstream.errors import AdapterFailed, ProtocolError, SpecstreamError
from specstream.stages.adapters import AdapterKind
from specstream.stages.interfaces import VoiceCapabilities
from specstream.stages.limits import MAX_MARKS, MAX_RATE, MIN_RATE
from specstream.types import AvatarCue, Mark, Phrase, ScenePrompt, Span, Speech

__all__ = ["MAX_MESSAGE", "AudioFrame", "Violation", "decode", "encode"]

SUBPROTOCOL = "specstream.stage.v1"
MAX_WINDOW = 1024
"""Maximum unacknowledged items per direction."""
Kind = AdapterKind

_LIMIT = 2**53 - 1  # the largest integer that JSON numbers of every language represent exactly


def _in_range(value: Any) -> Any:
    """Refuse a span that runs backwards or out of bounds, at any depth of ``value``."""
    if isinstance(value, Span):
        if not 0 <= value.start <= value.end <= _LIMIT:
            raise ValueError(f"[{value.start}, {value.end}] is not a range")
    elif isinstance(value, tuple):
        for part in value:
            _in_range(part)
    elif is_dataclass(value):
        for field in fields(value):
            _in_range(getattr(value, field.name))
    return value


_LONGEST_PHRASE = 16_384  # reading one aloud takes a server's event loop some 0.1 s


def _whole(phrase: Phrase) -> Phrase:
    if len(phrase.text) > _LONGEST_PHRASE:
        raise ValueError(f"a phrase has at most {_LONGEST_PHRASE} characters")
    if any(t.chars.start < phrase.chars.start or t.chars.end > phrase.chars.end for t in phrase.tags):
        raise ValueError("a tag lies outside of the phrase")
    return phrase


_Checked = AfterValidator(_in_range)
_Range = Annotated[Span, _Checked]
_Count = Annotated[int, Field(ge=0, le=_LIMIT)]
_Window = Annotated[int, Field(ge=1, le=MAX_WINDOW)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class SpeechHead(_Model):
    """A `Speech` without its PCM."""

    sample_rate: int = Field(ge=MIN_RATE, le=MAX_RATE)
    samples: _Range
    marks: Annotated[tuple[Mark, ...], Field(max_length=MAX_MARKS), _Checked]
    chars: _Range
    tokens: _Range
    phrase: _Count
    last: bool

    @classmethod
    def of(cls, speech: Speech) -> SpeechHead:
        """Take the fields of ``speech`` that go into JSON."""
        return cls(**{name: getattr(speech, name) for name in cls.model_fields})

    def join(self, pcm: bytes) -> Speech:
        """Return the speech with its PCM."""
        return Speech(pcm, **{name: getattr(self, name) for name in type(self).model_fields})


class _Speaking(_Model):
    """``audio`` is the number of the audio message that follows; None if there are no samples."""

    audio: Annotated[int, Field(ge=0, lt=2**32)] | None = None


class StartFrame(_Model):
    """A turn begins. ``window``: maximum unacknowledged items on their way to the client."""

    type: Literal["start"] = "start"
    window: _Window


class ChunkFrame(_Speaking):
    """The next item of the stage's input: a phrase, or speech if the stage is an avatar."""

    type: Literal["chunk"] = "chunk"
    phrase: Annotated[Phrase, _Checked, AfterValidator(_whole)] | None = None
    speech: SpeechHead | None = None


class RevokeFrame(_Model):
    """Void everything made from the reply's text at or past ``from_char``.

    ``drafted``: that text was never verified, so nothing made of it was released; stop work on it.
    """

    type: Literal["revoke"] = "revoke"
    from_char: _Count
    drafted: bool = False


class FlushFrame(_Model):
    """Finish the output of the items sent so far now; more items may follow."""

    type: Literal["flush"] = "flush"


class EndFrame(_Model):
    """The turn's input is complete."""

    type: Literal["end"] = "end"


class CancelFrame(_Model):
    """Stop the turn."""

    type: Literal["cancel"] = "cancel"
    reason: Annotated[str, Field(max_length=1000)] = "cancelled"


class AckFrame(_Model):
    """``count`` more items were used, so as many more may be sent. Both sides send it."""

    type: Literal["ack"] = "ack"
    count: _Window


class ReadyFrame(_Model):
    """The adapter's first frame. ``window``: maximum unacknowledged items on their way to it."""

    type: Literal["ready"] = "ready"
    kind: Kind
    adapter: str
    window: _Window
    voice: VoiceCapabilities | None = None


class SpeechFrame(_Speaking):
    """A voice's output."""

    type: Literal["speech"] = "speech"
    speech: SpeechHead


class CueFrame(_Model):
    """An avatar's output."""

    type: Literal["cue"] = "cue"
    cue: Annotated[AvatarCue, _Checked]


class PromptFrame(_Model):
    """A prompt rewriter's output. ``read``: the end of the text from which the prompt was made."""

    type: Literal["prompt"] = "prompt"
    prompt: Annotated[ScenePrompt, _Checked]
    read: _Count | None = None


class FlushedFrame(_Model):
    """Answers a flush, after the items that it finished."""

    type: Literal["flushed"] = "flushed"


class RevokedFrame(_Model):
    """Answers a revoke: nothing that follows was made from the revoked text."""

    type: Literal["revoked"] = "revoked"
    from_char: _Count
    drafted: bool = False


class DoneFrame(_Model):
    """The turn's output is complete."""

    type: Literal["done"] = "done"


class CancelledFrame(_Model):
    """Answers a cancel. ``cues`` return the face to rest."""

    type: Literal["cancelled"] = "cancelled"
    cues: Annotated[tuple[AvatarCue, ...], Field(max_length=256), _Checked] = ()


class ErrorFrame(_Model):
    """The connection's last frame; ``code`` is that of the exception (`specstream.errors`)."""

    type: Literal["error"] = "error"
    code: str
    message: str

    @classmethod
    def of(cls, error: SpecstreamError) -> ErrorFrame:
        """Convert ``error`` to its wire form."""
        return cls(code=error.code, message=str(error)[:2000])

    def error(self) -> SpecstreamError:
        """Return the exception that the frame stands for."""
        found: list[type[SpecstreamError]] = [SpecstreamError]
        for cls in found:
            if cls.__module__ == SpecstreamError.__module__ and cls.code == self.code:
                return cls(self.message)
            found.extend(cls.__subclasses__())
        return AdapterFailed(f"{self.message} ({self.code})")


Frame = (
    StartFrame
    | ChunkFrame
    | RevokeFrame
    | FlushFrame
    | EndFrame
    | CancelFrame
    | AckFrame
    | ReadyFrame
    | SpeechFrame
    | CueFrame
    | PromptFrame
    | FlushedFrame
    | RevokedFrame
    | DoneFrame
    | CancelledFrame
    | ErrorFrame
)


MAX_MESSAGE = 1 << 20
"""Largest message: bytes of audio (some eleven seconds at 48 kHz), or characters of JSON."""

_HEADER = struct.Struct("<4sBBHIIQI")
_MAGIC, _VERSION, _PCM_S16LE = b"SPST", 1, 1


class Violation(ProtocolError):
    """The peer broke the protocol; its connection is closed with ``close_code``."""

    def __init__(self, message: str, close_code: Literal[1002, 1007, 1009] = 1002) -> None:
        super().__init__(message)
        self.close_code = close_code


@dataclass(frozen=True, slots=True)
class AudioFrame:
    """A binary message of s16le PCM.

    ``number`` counts the turn's audio messages in this direction; ``start`` is the first sample on the
    turn's clock.
    """

    number: int
    sample_rate: int
    start: int
    pcm: bytes


_FRAME: TypeAdapter[Frame] = TypeAdapter(Annotated[Frame, Field(discriminator="type")])


def encode(frame: Frame | AudioFrame) -> str | bytes:
    """Encode a message.

    Raises:
        AdapterFailed: the item doesn't fit into one message.
    """
    if isinstance(frame, AudioFrame):
        head = (_MAGIC, _VERSION, _PCM_S16LE, 0, frame.number, frame.sample_rate, frame.start)
        message: str | bytes = _HEADER.pack(*head, len(frame.pcm)) + frame.pcm
    else:
        message = frame.model_dump_json()
    if len(message) > MAX_MESSAGE:
        what = "audio" if isinstance(frame, AudioFrame) else frame.type
        raise AdapterFailed(
            f"one {what} item is {len(message)} long and {MAX_MESSAGE} fit into a message; "
            "hand over smaller pieces (a voice: buffers of at most about 60 ms)"
        )
    return message


def decode(message: str | bytes) -> Frame | AudioFrame:
    """Decode a message.

    Raises:
        Violation: the message is no frame of this protocol.
    """
    if len(message) > MAX_MESSAGE:
        raise Violation(f"a message longer than {MAX_MESSAGE}", 1009)
    if isinstance(message, bytes):
        return _decode_audio(message)
    try:
        return _FRAME.validate_json(message)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "frame"
        unknown = first["type"].startswith("union_tag")
        raise Violation(f"{where}: {first['msg']}"[:300], 1002 if unknown else 1007) from None


def _decode_audio(message: bytes) -> AudioFrame:
    if len(message) < _HEADER.size:
        raise Violation(f"an audio message has a header of {_HEADER.size} bytes", 1007)
    magic, version, coding, reserved, number, rate, start, size = _HEADER.unpack_from(message)
    if (magic, version, coding, reserved) != (_MAGIC, _VERSION, _PCM_S16LE, 0):
        raise Violation("not an audio message of this protocol: magic, version or coding differ", 1007)
    if len(message) != _HEADER.size + size or size % 2:
        raise Violation("an audio message's length is not what its header says", 1007)
    return AudioFrame(number, rate, start, message[_HEADER.size :])
