"""Messages of ``specstream.stage.v1``: frames as JSON text, audio as a binary header and PCM."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from specstream.errors import AdapterFailed, ProtocolError
from specstream.ws.stage.frames import Frame

__all__ = ["MAX_MESSAGE", "AudioFrame", "Violation", "decode", "encode"]

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
        raise Violation(
            "not an audio message of this protocol: magic, version or coding differ", 1007
        )
    if len(message) != _HEADER.size + size or size % 2:
        raise Violation("an audio message's length is not what its header says", 1007)
    return AudioFrame(number, rate, start, message[_HEADER.size :])
