"""The parts that all Realtime frames share: sparse writing, refusals, ids."""

from __future__ import annotations

import secrets
from typing import Any, Literal

from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer

from specstream.errors import ProtocolError

__all__ = ["MAX_FRAME", "PATH", "SAMPLE_RATE", "Ignored", "Refused", "Sparse", "new_id"]

PATH = "/v1/realtime"
MAX_FRAME = 1 << 20
"""Bytes of the longest frame that a server takes."""
SAMPLE_RATE = 24000
"""Samples a second of ``audio/pcm`` on the wire; the only rate that the protocol knows."""

ErrorType = Literal["invalid_request_error", "server_error"]


class Refused(ProtocolError):
    """A client event that can't be served; becomes an ``error`` event, and the session goes on."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        type: ErrorType = "invalid_request_error",
        event_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param
        self.type: ErrorType = type
        self.event_id = event_id


class Sparse(BaseModel):
    """A model that is written to a client: fields that are None are left out."""

    @model_serializer(mode="wrap")
    def _without_none(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value is not None}


class Ignored(BaseModel):
    """A part of a client's frame that was ignored; reported in ``specstream``."""

    code: Literal["unsupported_setting", "input_audio_not_supported"] = "unsupported_setting"
    param: str
    message: str


def new_id(kind: str) -> str:
    """Return a fresh id such as ``item_3f…``."""
    return f"{kind}_{secrets.token_hex(10)}"
