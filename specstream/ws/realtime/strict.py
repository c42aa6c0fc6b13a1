"""Strict reading of what a client sends: what doesn't fit is refused by the name of its key."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import ErrorDetails

from specstream.ws.realtime.wire import Refused

__all__ = ["Strict", "expecting", "validate"]


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
