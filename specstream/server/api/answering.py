"""Answers that end with their client: whole ones, and streams of server-sent events."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from specstream.errors import SpecstreamError
from specstream.server.api.errors import ApiError, broken

__all__ = ["BODY_S", "DONE", "Events", "Streamed", "read_body", "while_connected"]

T = TypeVar("T")
_log = logging.getLogger("specstream.server")

DONE = b"data: [DONE]\n\n"
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
    if len(told) <= 20 and told.isascii() and told.isdigit() and int(told) > _READ:
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
        raise _only(errors) from None
    return found[0] if found else None


def _only(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


class Streamed(Response):
    """A body that is sent as it is made, with a status that is chosen by its first part.

    An error before that becomes an error's status; a later one is the last part (``failed``), so that a
    stream never ends as if it were whole. A client that goes cancels the work.

    Args:
        parts: The body.
        kind: Its content type.
        silence: Sent when nothing came for five seconds; None: nothing.
        failed: Makes the part that tells of an error; None: the connection is dropped.
    """

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        kind: str,
        *,
        silence: bytes | None = None,
        failed: Callable[[ApiError], bytes] | None = None,
    ) -> None:
        super().__init__(media_type=kind)
        self._parts, self._silence, self._failed = parts, silence, failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""

        async def watch() -> None:
            await _gone(receive)
            group.cancel_scope.cancel()

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(watch)
                try:
                    await self._answer(scope, receive, send)
                except* TimeoutError:
                    _log.info("a client that takes nothing of its answer is dropped")
                group.cancel_scope.cancel()
        except BaseExceptionGroup as errors:
            raise _only(errors) from None

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        put, take = anyio.create_memory_object_stream[bytes | ApiError](0)
        async with anyio.create_task_group() as group, take:
            group.start_soon(self._make, put)
            begun = False
            while True:
                part: bytes | ApiError | None = self._silence
                with anyio.move_on_after(_SILENT_S):
                    try:
                        part = await take.receive()
                    except anyio.EndOfStream:
                        break
                if not begun and isinstance(part, ApiError):
                    await part.response()(scope, receive, send)
                    return
                if not begun:
                    begun = True
                    await self._begin(send)
                if isinstance(part, ApiError):
                    if self._failed is None:
                        raise part
                    part = self._failed(part)
                if part is not None:
                    await self._send(send, {"body": part, "more_body": True})
            if not begun:
                await self._begin(send)
            await self._send(send, {"body": b"", "more_body": False})

    async def _begin(self, send: Send) -> None:
        headers = [
            (b"content-type", self.headers["content-type"].encode()),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _send(self, send: Send, message: dict[str, Any]) -> None:
        with anyio.fail_after(_PATIENCE_S):  # else it would hold its place for ever
            await send({"type": "http.response.body", **message})

    async def _make(self, put: MemoryObjectSendStream[bytes | ApiError]) -> None:
        async with put, aclosing(self._parts):
            try:
                async for part in self._parts:
                    await put.send(part)
            except ApiError as error:
                await put.send(error)
            except SpecstreamError as error:
                await put.send(ApiError.of(error))
            except anyio.BrokenResourceError:
                return  # nobody takes the answer any more
            except Exception:
                _log.exception("an answer broke")
                await put.send(broken())


class Events(Streamed):
    """Server-sent events of JSON data, with a comment after five silent seconds."""

    def __init__(
        self,
        events: AsyncGenerator[dict[str, Any], None],
        *,
        named: bool = False,
        done: bool = True,
    ) -> None:
        async def parts() -> AsyncGenerator[bytes, None]:
            async with aclosing(events):
                async for event in events:
                    yield _event(event, named)
            if done:
                yield DONE

        super().__init__(
            parts(),
            "text/event-stream; charset=utf-8",
            silence=_PING,
            failed=lambda error: _event(error.body(), False),
        )


def _event(event: dict[str, Any], named: bool) -> bytes:
    data = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    head = f"event: {event['type']}\n" if named else ""
    return f"{head}data: {data}\n\n".encode()
