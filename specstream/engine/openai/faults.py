"""Errors of a server and of the way to it, as typed errors with the server's own words."""

from __future__ import annotations

import json
import re
from typing import Any

from specstream.errors import (
    ConfigError,
    ConnectionFailed,
    EngineBusy,
    EngineError,
    EngineFailed,
    ModelNotFound,
    PromptError,
    PromptTooLong,
    SpecstreamError,
)

__all__ = ["typed", "words_of"]

_TOO_LONG = re.compile(
    r"context[ _](?:length|size|window)|exceeds?_context|input_tokens|too long", re.I
)
_LONGEST = 300  # characters of a server's words in an error


def typed(error: Exception, url: str) -> SpecstreamError:
    """Return an exception of the ``openai`` package, or of reading its stream, as one of ours."""
    import openai

    if isinstance(error, SpecstreamError):
        return error
    if isinstance(error, openai.APIStatusError):
        made = _of_status(error.status_code, words_of(error), url)
    elif isinstance(error, openai.APIConnectionError):
        cause = error.__cause__ or error
        made = ConnectionFailed(f"{url}: the connection failed ({cause or type(cause).__name__})")
    elif isinstance(error, openai.APIError):  # an error event in the stream
        made = EngineFailed(f"{url} ended the reply: {words_of(error)}")
    elif isinstance(error, json.JSONDecodeError):
        made = EngineFailed(f"{url} sent an event that is no JSON")
    else:
        made = EngineFailed(f"{url}: {error or type(error).__name__}")
    made.__cause__ = error
    return made


def _of_status(status: int, words: str, url: str) -> SpecstreamError:
    said = f"{url} answers {status}: {words}"
    if status in (401, 403):
        return ConfigError(f"{said}; check the key")
    if status == 404:
        return ModelNotFound(said)
    if status in (429, 503):
        return EngineBusy(said)
    if status in (400, 413, 422):
        return PromptTooLong(said) if _TOO_LONG.search(words) else PromptError(said)
    return EngineFailed(said) if status >= 500 else EngineError(said)


def words_of(error: Any) -> str:
    """Return what a server said, whatever shape its body has: an object, a list, a text."""
    body: Any = getattr(error, "body", None)
    if isinstance(body, dict):
        inner = body.get("error", body.get("detail", body.get("message", body)))
        body = inner.get("message", inner) if isinstance(inner, dict) else inner
    words = body if isinstance(body, str) else json.dumps(body) if body else str(error)
    kind = error.body.get("type", "") if isinstance(getattr(error, "body", None), dict) else ""
    param = getattr(error, "param", None) or ""
    hints = " ".join(str(hint) for hint in (kind, param) if hint and str(hint) not in words)
    return " ".join(words.split())[:_LONGEST] + (f" ({hints})" if hints else "")
