"""Errors of the HTTP API in OpenAI's shape."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from starlette.responses import JSONResponse, Response

from specstream.errors import (
    AdapterUnavailable,
    EngineBusy,
    EngineClosed,
    PromptError,
    PromptTooLong,
    RequestError,
    SamplingError,
    SpecstreamError,
)
from specstream.params import SamplingParams
from specstream.realtime.resources import told_to_callers

__all__ = ["ApiError", "broken"]

_INVALID = "invalid_request_error"
_SHUT = "server_error"
_LONGEST_RETRY_S = 86_400.0
_OF_PROMPT = re.compile(r"(the )?(last )?(messages?|prompt)\b|the model has no token\b")
_PARAMS = {field.name for field in fields(SamplingParams)}
"""Messages about one begin with its name."""


class ApiError(Exception):
    """A request that can't be served; becomes ``{"error": {…}}`` with a status.

    Args:
        status: The HTTP status.
        message: What is wrong, and what to do about it.
        type: OpenAI's class of error.
        param: The field of the body that is wrong.
        code: A stable name.
        retry_s: After how many seconds another try may succeed.
    """

    def __init__(
        self,
        status: int,
        message: str,
        type: str = _INVALID,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.type = status, message, type
        self.param, self.code, self._retry_s = param, code, retry_s

    @classmethod
    def of(cls, error: SpecstreamError, prompt: str = "messages") -> ApiError:
        """Translate an error of ours; ``prompt`` is the field that has the prompt."""
        told = told_to_callers(error)
        match error:
            case PromptTooLong():
                return cls(400, told, code="context_length_exceeded", param=prompt)
            case SamplingError():
                name = told.partition(" ")[0]
                return cls(400, told, code=error.code, param=name if name in _PARAMS else None)
            case PromptError():
                param = prompt if _OF_PROMPT.match(told) else None
                return cls(400, told, code=error.code, param=param)
            case RequestError():
                return cls(400, told, code=error.code)
            case EngineBusy():
                seconds = math.ceil(max(1.0, min(error.retry_s, _LONGEST_RETRY_S)))
                return cls(429, told, "rate_limit_error", code=error.code, retry_s=seconds)
            case EngineClosed():
                return cls(503, told, _SHUT, code=error.code, retry_s=5)
            case AdapterUnavailable():
                return cls(501, told, _SHUT, code=error.code)
            case _:
                return cls(500, told, _SHUT, code=error.code)

    def body(self) -> dict[str, Any]:
        """The error as JSON data, also in the middle of a stream."""
        return {
            "error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        }

    def response(self, headers: Mapping[str, str] | None = None) -> Response:
        """The error as a whole answer."""
        more = {} if self._retry_s is None else {"Retry-After": str(self._retry_s)}
        return JSONResponse(self.body(), self.status, {**more, **(headers or {})})


def broken() -> ApiError:
    """A fault of the server's own, which its log describes."""
    return ApiError(500, "the server failed; its log says why", _SHUT, code="internal_error")
