"""Answers that end with their client: whole ones, and streams of server-sent events."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from specstream.errors import SpecstreamError
from specstream.server.api.errors import ApiError, broken

__all__ = ["BODY_S", "DONE", "Events", "Streamed", "read_body", "while_connected"]

T = TypeVar("T")
_log = logging.getLogger("specstream.server")

DONE = b"data: [DONE]\n\n"
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_PING = b": ping\n\n"
_SILENT_S = 5.0  # after so much silence a comment is sent: some clients give up after ten
_PATIENCE_S = 20.0  # a client that takes nothing for so long is dropped
_READ = 128 << 20  # bytes of a body that is too long
BODY_S = 30.0
"""Seconds for a whole body to arrive."""


async def read_body(request: Request, most: int) -> bytes:
    """Read a request's body.

    Raises:
        ApiError: it is longer than ``most`` bytes, or doesn't end in time.
    """
    told = request.headers.get("content-length", "")
    too_long = ApiError(413, f"a body has at most {most} bytes", code="body_too_large")
    announced = int(told) if len(told) <= 20 and told.isascii() and told.isdigit() else 0
    if announced > (most if "expect" in request.headers else _READ):  # who expects an answer reads it
        raise too_long
    parts, size = list[bytes](), 0
    try:
        with anyio.fail_after(BODY_S):
            async for part in request.stream():
                parts.append(part)
                size += len(part)
                if size > most:
                    parts.clear()  # the rest is read, so that the client gets to the answer
                if size > _READ:
                    break
    except TimeoutError:
        raise ApiError(408, f"the body didn't end within {BODY_S:g} s") from None
    if size > most:
        raise too_long
    return b"".join(parts)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(request: Request, work: Callable[[], Awaitable[T]]) -> T | None:
    """Run ``work`` until it ends or the client goes, which cancels it (then None).

    A host tells an application of neither; so its messages are watched.
    """
    found = list[T]()

    async def run() -> None:
        found.append(await work())
        group.cancel_scope.cancel()

    async def watch() -> None:
        await _gone(request.receive)
        group.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            group.start_soon(watch)
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    return found[0] if found else None


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error of a group that is told; where several replies fail, they do for one reason."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error, *others = error.exceptions
        for other in others:
            _log.warning("something else failed at the same time: %r", other)
    return error


class Streamed(Response):
    """A body that is sent as it is made, with a status that is chosen by its first part.

    An error before that becomes an error's status; a later one is the last part (``failed``), so that a
    stream never ends as if it were whole. A client that goes cancels the work.

    Args:
        parts: The body.
        kind: Its content type.
        silence: Sent when nothing came for five seconds; None: the headers only, once.
        failed: Makes the part that tells of an error; None: the connection is dropped.
        tail: The last part of a body that ended well.
    """

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        kind: str,
        *,
        silence: bytes | None = None,
        failed: Callable[[ApiError], bytes] | None = None,
        tail: bytes = b"",
    ) -> None:
        super().__init__(media_type=kind)
        self._parts, self._silence, self._failed, self._tail = parts, silence, failed, tail

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        body = _Body(send, self.headers["content-type"])

        async def watch() -> None:
            await _gone(receive)
            group.cancel_scope.cancel()

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(watch)
                group.start_soon(body.guard, self._silence)
                error = await self._answer(body)
                if error is not None and not group.cancel_scope.cancel_called:
                    await body.send_instead(error.response(), scope, receive)
                group.cancel_scope.cancel()
        except BaseExceptionGroup as errors:
            late, others = errors.split(TimeoutError)
            if late is not None:
                _log.info("a client that takes nothing of its answer is dropped")
            if others is not None:
                raise _first(others) from None

    def told(self, error: ApiError) -> bytes | None:
        """The last part of a body that an error ends; None if its kind has none."""
        return None if self._failed is None else self._failed(error)

    async def _answer(self, body: _Body) -> ApiError | None:
        """Send all parts; returns an error before anything was sent, for a status of its own."""
        async with aclosing(self._results()) as results:
            async for part in results:
                if isinstance(part, ApiError):
                    if not body.begun:
                        return part
                    if (told := self.told(part)) is None:
                        raise part
                    await body.send(told, last=True)
                    return None
                await body.send(part)
        await body.send(self._tail, last=True)
        return None

    async def _results(self) -> AsyncGenerator[bytes | ApiError, None]:
        async with aclosing(self._parts):
            try:
                async for part in self._parts:
                    yield part
            except ApiError as error:
                yield error
            except SpecstreamError as error:
                yield ApiError.of(error)
            except Exception:
                _log.exception("an answer broke")
                yield broken()


class _Body:
    """The body of an answer on its way; `guard` runs beside those who send."""

    def __init__(self, send: Send, kind: str) -> None:
        self._send, self._kind = send, kind
        self._lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()  # when the last part was begun, or had been sent
        self._under_way = False
        self._others_ran = True  # whether the loop has gone round since the last part
        self.begun = False

    async def send(self, part: bytes, *, last: bool = False) -> None:
        """Send a part; the first one sends the headers, too."""
        if not self._others_ran:  # parts that are there already would keep the loop to themselves
            await asyncio.sleep(0)
        async with self._lock:
            self._since, self._under_way = self._loop.time(), True
            if not self.begun:
                self.begun = True
                await self._begin()
            await self._send({"type": "http.response.body", "body": part, "more_body": not last})
            self._since, self._under_way = self._loop.time(), False
        self._others_ran = False
        self._loop.call_soon(self._gone_round)

    def _gone_round(self) -> None:
        self._others_ran = True

    async def send_instead(self, response: Response, scope: Scope, receive: Receive) -> None:
        """Send a whole answer in the place of a body that hasn't begun."""
        self._since, self._under_way = self._loop.time(), True
        await response(scope, receive, self._send)

    async def guard(self, silence: bytes | None) -> None:
        """Send ``silence`` when nothing else is sent; without it the headers only.

        Raises:
            TimeoutError: the client takes nothing; else it would hold its place for ever.
        """
        while True:
            passed = self._loop.time() - self._since
            if self._under_way and passed >= _PATIENCE_S:
                raise TimeoutError
            if not self._under_way and passed >= _SILENT_S:
                if silence is not None or not self.begun:
                    with anyio.fail_after(_PATIENCE_S):
                        await self.send(silence or b"")
                passed = 0.0
            limit = _PATIENCE_S if self._under_way else _SILENT_S
            await anyio.sleep(min(limit - passed, _SILENT_S))

    async def _begin(self) -> None:
        headers = [
            (b"content-type", self._kind.encode()),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})


class Events(Streamed):
    """Server-sent events of JSON data, with a comment after five silent seconds.

    Args:
        events: Each item is what is sent together.
        named: Whether events have a name, their ``type``.
        done: Whether ``[DONE]`` ends the stream.
    """

    def __init__(
        self,
        events: AsyncGenerator[list[dict[str, Any]], None],
        *,
        named: bool = False,
        done: bool = True,
    ) -> None:
        async def parts() -> AsyncGenerator[bytes, None]:
            async with aclosing(events):
                async for together in events:
                    if together:
                        yield b"".join(_event(event, named) for event in together)

        super().__init__(
            parts(),
            "text/event-stream; charset=utf-8",
            silence=_PING,
            failed=lambda error: _event(error.body(), False),
            tail=DONE if done else b"",
        )


def _event(event: dict[str, Any], named: bool) -> bytes:
    data = _JSON.encode(event)
    head = f"event: {event['type']}\n" if named else ""
    return f"{head}data: {data}\n\n".encode()
