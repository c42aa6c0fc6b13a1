"""Begins a server's reply: again where it is busy, shorter where it is too long; its errors, typed."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import anyio

from specstream.engine.openai.body import messages_of, without_oldest_turn
from specstream.engine.openai.parts import error_in
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
from specstream.types import Message

if TYPE_CHECKING:
    import openai

__all__ = ["LIMITS", "ReplyStart", "typed", "words_of"]

_MOST_CUTS = 32  # turns that are left out of a prompt, one refused request each
_PAUSES_S = (0.5, 1.0)  # before further tries, where the server says nothing of when
_AGAIN = (408, 409, 429)  # and those from 500 on
LIMITS = ("max_tokens", "max_completion_tokens")
"""Names of the limit of tokens: the common one, and the one that OpenAI's newer models want."""


class ReplyStart:
    """The request for one reply; calling it returns the stream of its parts, when the first is there.

    A server that is busy, or doesn't answer, is asked twice more, unless it says that it will be busy
    for longer than a reply's first word may take.

    Args:
        url: The server, for error texts.
        create: Sends a request.
        fields: Its fields, but for the messages.
        messages: The conversation.
        shortens: Whether the oldest turns leave a conversation that is too long.
        first_s: What may be waited for the first part.

    Attributes:
        left_out: Messages that have left the conversation.
        limit: The name of the limit of tokens that the server takes.
    """

    limit = LIMITS[0]

    def __init__(
        self,
        url: str,
        create: Callable[..., Awaitable[Any]],
        fields: dict[str, Any],
        messages: Sequence[Message],
        *,
        shortens: bool,
        first_s: float,
    ) -> None:
        self._url, self._create, self._fields, self._messages = url, create, fields, messages
        self._shortens, self._first_s = shortens, first_s
        self.left_out = 0

    async def __call__(self) -> AsyncIterator[Any]:
        """Send the request.

        Raises:
            SpecstreamError: the server's last refusal.
        """
        until = anyio.current_time() + self._first_s
        pauses, cuts = iter(_PAUSES_S), 0
        while True:
            try:
                return await self._begun()
            except Exception as error:
                fault = typed(error, self._url)
                if isinstance(fault, PromptTooLong) and self._shorter() and cuts < _MOST_CUTS:
                    cuts += 1
                    continue
                if self._renamed(fault):
                    continue
                pause = _pause(error, next(pauses, None))
                if pause is None or anyio.current_time() + pause > until:
                    raise fault from error
                await anyio.sleep(pause)

    async def _begun(self) -> AsyncIterator[Any]:
        parts: Any = await self._create(messages=messages_of(self._messages), **self._fields)
        _bound(parts.response, self._url)
        try:
            await _check_kind(parts.response, self._url)
            first = await anext(parts, None)
            if said := error_in(first):
                raise _in_stream(self._url, said)
        except BaseException:
            with anyio.CancelScope(shield=True), anyio.move_on_after(1.0):
                await parts.close()
            raise
        return _Begun(first, parts)

    def _shorter(self) -> bool:
        """Leave out the oldest turn, if that is wanted and another one is there."""
        shorter = without_oldest_turn(self._messages) if self._shortens else None
        if shorter is None:
            return False
        self.left_out += len(self._messages) - len(shorter)
        self._messages = shorter
        return True

    def _renamed(self, fault: SpecstreamError) -> bool:
        """Give the limit of tokens its other name, if that is what the server refuses."""
        old, new = LIMITS
        if not isinstance(fault, PromptError) or old not in self._fields or new not in str(fault):
            return False
        self._fields[new] = self._fields.pop(old)
        self.limit = new
        return True


class _Begun:
    """A stream whose first part was read already; None: it has none."""

    def __init__(self, first: Any, parts: Any) -> None:
        self._first, self._parts = first, parts

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        first, self._first = self._first, None
        return first if first is not None else await anext(self._parts)

    async def close(self) -> None:
        """Close the stream."""
        await self._parts.close()


def _pause(error: Exception, usual: float | None) -> float | None:
    """Seconds before another try; None: it wouldn't help, or there were enough."""
    import openai

    if usual is None:
        return None
    if isinstance(error, openai.APIConnectionError) or _is_busy(error):
        return usual
    if not isinstance(error, openai.APIStatusError):
        return None
    if error.status_code not in _AGAIN and error.status_code < 500:
        return None
    return _wanted_pause(error, usual)


def _wanted_pause(error: openai.APIStatusError, usual: float) -> float:
    """Seconds after which a server wants to be asked again."""
    headers = error.response.headers
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1e3)
        return max(0.0, float(headers.get("retry-after", usual)))
    except ValueError:  # a date
        return usual


_LONGEST_EVENT = 4 << 20  # bytes
_EVENT_END = re.compile(rb"(?s).*(?:\n\n|\r\n\r\n|\r\r)")


def _bound(response: Any, url: str) -> None:
    """End a stream at an event that is too long; the client's library would keep all of it."""
    read = response.aiter_bytes

    async def bounded(*args: Any) -> AsyncGenerator[bytes, None]:
        size, tail = 0, b""
        async for data in read(*args):
            tail += data
            ended = _EVENT_END.match(tail)
            size = len(tail) - ended.end() if ended else size + len(data)
            tail = tail[-3:]
            if size > _LONGEST_EVENT:
                raise EngineFailed(f"{url} sent an event of more than {_LONGEST_EVENT >> 20} MiB")
            yield data

    response.aiter_bytes = bounded


async def _check_kind(response: Any, url: str) -> None:
    """Refuse an answer that is no stream, with its words: a page, an error, a whole reply."""
    kind = str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()
    if kind not in ("application/json", "text/html"):
        return
    data = (await response.aread()).decode(errors="replace")
    try:
        said = _said(json.loads(data))
    except ValueError:
        said = data
    said = " ".join(said.split())[:_LONGEST]
    raise EngineFailed(f"{url} answers with {kind} instead of a stream of events: {said}")


_TOO_LONG = re.compile(r"context[ _](?:length|size|window)|exceeds?_context|input_tokens|too long", re.I)
_KEY = re.compile(r"\b(?:sk|pk|key)-[\w*.-]{4,}")
_LONGEST = 300  # characters of a server's words in an error


def typed(error: Exception, url: str) -> SpecstreamError:
    """Return an exception of the ``openai`` package, or of reading its stream, as one of ours."""
    import openai

    if isinstance(error, SpecstreamError):
        return error
    if isinstance(error, openai.APIStatusError):
        made = _of_status(error.status_code, words_of(error), url)
        if isinstance(made, EngineBusy):
            made.retry_s = _wanted_pause(error, made.retry_s)
    elif isinstance(error, openai.APIConnectionError):
        cause = error.__cause__ or error
        why = str(cause).strip("()") or type(cause).__name__
        made = ConnectionFailed(f"{url}: the connection failed ({why})")
    elif isinstance(error, openai.APIError):  # an error event in the stream
        made = _in_stream(url, words_of(error), busy=_is_busy(error))
    elif isinstance(error, json.JSONDecodeError):
        made = EngineFailed(f"{url} sent an event that is no JSON")
    elif isinstance(error, TypeError | AttributeError | LookupError):
        made = EngineFailed(f"{url} sent an event that is no part of a chat completion")
    else:
        made = EngineFailed(f"{url}: {error or type(error).__name__}")
    made.__cause__ = error
    return made


def _is_busy(error: Exception) -> bool:
    """Whether an event of the stream says so, behind the status 200."""
    return str(getattr(error, "code", "")) in ("429", "503")


def _in_stream(url: str, words: str, *, busy: bool = False) -> SpecstreamError:
    said = f"{url} ended the reply: {words}"
    if busy:
        return EngineBusy(said)
    return PromptTooLong(said) if _TOO_LONG.search(words) else EngineFailed(said)


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
    words = _said(body) if body else str(error)
    kind = body.get("type", "") if isinstance(body, dict) else ""
    param = getattr(error, "param", None) or ""
    hints = " ".join(str(hint) for hint in (kind, param) if hint and str(hint) not in words)
    return _KEY.sub("…", " ".join(words.split())[:_LONGEST]) + (f" ({hints})" if hints else "")


def _said(body: Any) -> str:
    if isinstance(body, list) and len(body) == 1:  # Gemini's errors
        body = body[0]
    if isinstance(body, dict):
        inner = body.get("error", body.get("detail", body.get("message", body)))
        body = inner.get("message", inner) if isinstance(inner, dict) else inner
    return body if isinstance(body, str) else json.dumps(body)
