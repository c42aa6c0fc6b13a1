"""Ids, limits and refusals of the protocol; what a client sends is read strictly."""

from __future__ import annotations

import secrets
from typing import Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_serializer,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from specstream.errors import ProtocolError

__all__ = [
    "MAX_EVENT",
    "MAX_FRAME",
    "PATH",
    "SAMPLE_RATE",
    "Ignored",
    "Refused",
    "Sparse",
    "Strict",
    "at_most",
    "expecting",
    "new_id",
    "validate",
]

PATH = "/v1/realtime"
MAX_FRAME = 16 << 20
"""Bytes of the longest frame that a server takes: 15 MiB of an append's audio fit in."""
MAX_EVENT = 1 << 20
"""Characters of the longest frame that appends no audio."""
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


class Strict(BaseModel):
    """A model that is read from a client: an unknown key is refused, never dropped."""

    model_config = ConfigDict(extra="forbid")


M = TypeVar("M", bound=BaseModel)


def validate(model: type[M], data: Any, *, at: str = "") -> M:
    """Read ``data`` as ``model``; ``at`` is its path in the frame.

    Raises:
        Refused: names the first key that is unknown, missing or wrong.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False)[0], at) from None


def at_most(most: int) -> BeforeValidator:
    """Refuse a list or an object of more than ``most`` items before any of them is read.

    pydantic makes an error of each wrong item, also beyond ``max_length``: seconds for a million.
    """

    def check(value: Any) -> Any:
        if isinstance(value, list | tuple | dict) and len(value) > most:
            raise PydanticCustomError("too_long", f"there may be at most {most} items")
        return value

    return BeforeValidator(check)


def expecting(what: str) -> WrapValidator:
    """Refuse a value that doesn't fit with the words ``what``.

    For unions: pydantic names a member's type in its refusal as if it were a key.
    """

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise ValueError(what) from None

    return WrapValidator(check)


def _refusal(error: ErrorDetails, at: str) -> Refused:
    param = at
    for part in error["loc"]:
        if part == "[key]":  # pydantic's mark for the key of a dict, which comes before it
            continue
        if isinstance(part, int):
            param += f"[{part}]"
        else:
            param += f".{part}" if param else part
    kind = error["type"]
    if kind == "extra_forbidden":
        return Refused("unknown_parameter", f"Unknown parameter: '{param}'.", param=param)
    if kind == "missing":
        message = f"Missing required parameter: '{param}'."
        return Refused("missing_required_parameter", message, param=param)
    wrong_type = kind.endswith(("_type", "_parsing"))
    code, word = ("invalid_type", "Invalid type") if wrong_type else ("invalid_value", "Invalid")
    reason = error["msg"].removeprefix("Value error, ")
    return Refused(code, f"{word} for '{param}': {reason}.", param=param or None)
