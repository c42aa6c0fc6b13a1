"""A client's connection that comes back: what the server has sent is received once, in order."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Protocol

import anyio
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from specstream.client.dial import check_url, dial, with_query
from specstream.errors import ConnectionFailed

__all__ = ["RESUME_S", "ClientSocket", "ResumingSocket", "resuming"]

RESUME_S = 30.0
"""Seconds for which a client tries to come back: proxies restart within that time."""

_ACK_EVERY = 16  # events
# Of frames that may have to be sent again: a server may note once a minute what has come.
_MOST_KEPT, _MOST_CHARS = 1 << 15, 16 << 20
_LEAST_PAUSE_S, _MOST_PAUSE_S = 0.1, 2.0
_OVER = (1000, 1008)  # close codes after which there is nothing to come back to
_EXPIRED = "resume_expired"  # the code of the error after which there is nothing, either


class ClientSocket(Protocol):
    """The part of a WebSocket connection that a client uses."""

    async def send(self, message: str) -> None:
        """Send a frame. Raises ConnectionClosed."""

    async def recv(self) -> str | bytes:
        """Return the next frame; cancelling loses none. Raises ConnectionClosed."""


class ResumingSocket:
    """A `ClientSocket` over as many connections as it takes.

    Args:
        socket: The first connection, whose first event was read.
        token: The session's, from that event.
        again: Connects once more with this query; returns the connection and its first frame.
        resume_s: For how many seconds to try, each time a connection breaks.
    """

    def __init__(
        self,
        socket: ClientConnection,
        token: str,
        again: Callable[[str], Awaitable[tuple[ClientConnection, str | bytes]]],
        resume_s: float,
    ) -> None:
        self._socket, self._token, self._again, self._resume_s = socket, token, again, resume_s
        self._seen = 0
        self._acked = 0
        self._sent = 0  # frames, without acknowledgements
        self._kept = deque[str]()
        self._chars = 0  # of those
        self._coming_back = anyio.Lock()

    async def send(self, message: str) -> None:
        """See `ClientSocket.send`; waits for a connection.

        Raises:
            ConnectionFailed: there was none in time.
        """
        self._sent += 1
        self._keep(message)
        socket = self._socket
        try:
            await socket.send(message)
        except ConnectionClosed as closed:
            await self._come_back(socket, closed)  # and send what has not arrived
        except BaseException:  # cancelled: only the server knows whether it has arrived, and tells
            socket.transport.abort()
            raise

    def _keep(self, message: str) -> None:
        self._kept.append(message)
        self._chars += len(message)
        while len(self._kept) > _MOST_KEPT or (self._chars > _MOST_CHARS and len(self._kept) > 1):
            self._chars -= len(self._kept.popleft())

    async def recv(self) -> str | bytes:
        """See `ClientSocket.recv`.

        Raises:
            ConnectionFailed: there was no connection in time, or the session is gone.
        """
        while True:
            socket = self._socket
            try:
                if self._seen - self._acked >= _ACK_EVERY:  # before a frame is taken: none is lost
                    await self._acknowledge(socket)
                frame = await socket.recv()
            except ConnectionClosed as closed:
                await self._come_back(socket, closed)
                continue
            seq = _seq(frame)
            if seq is None:
                return frame
            if seq > self._seen:
                self._seen = seq
                return frame

    async def _acknowledge(self, socket: ClientConnection) -> None:
        with suppress(ConnectionClosed):  # frames that came before can still be read
            await socket.send(json.dumps({"type": "specstream.ack", "seq": self._seen}))
            self._acked = self._seen

    async def _come_back(self, broken: ClientConnection, closed: ConnectionClosed) -> None:
        """Get a new connection in place of one that broke, unless somebody else has."""
        async with self._coming_back:
            if self._socket is not broken:
                return
            if closed.rcvd is not None and closed.rcvd.code in _OVER:
                raise closed
            pause = _LEAST_PAUSE_S
            why = ConnectionFailed(
                f"the connection broke, and no server answered for {self._resume_s:g} s"
            )
            with anyio.move_on_after(self._resume_s):
                while (found := await self._try()) is not None:
                    why = found
                    await anyio.sleep(pause)
                    pause = min(2 * pause, _MOST_PAUSE_S)
                return
            raise why

    async def _try(self) -> ConnectionFailed | None:
        """Come back once; returns why another try may help.

        Raises:
            ConnectionFailed: none will.
        """
        try:
            socket, first = await self._again(f"resume={self._token}&seq={self._seen}")
        except ConnectionFailed as failed:
            return failed
        try:
            told = _object(first)
            arrived = told.get("received")
            if told.get("type") == "specstream.resumed" and isinstance(arrived, int):
                await self._send_missed(socket, arrived)
                self._socket, self._acked = socket, self._seen
                return None
        except ConnectionClosed as again:
            return ConnectionFailed(f"the connection broke again: {again}")
        finally:
            if self._socket is not socket:
                socket.transport.abort()
        error = told.get("error")
        error = error if isinstance(error, dict) else {}
        if error.get("code") != _EXPIRED:
            why = error.get("message", "the server's answer is none that is known here")
            return ConnectionFailed(f"the session can't be resumed: {why}")
        raise ConnectionFailed("the session can't be resumed: it has ended, or what was missed is gone")

    async def _send_missed(self, socket: ClientConnection, arrived: int) -> None:
        while (missed := self._sent - arrived) > 0:  # others may send meanwhile
            if missed > len(self._kept):
                raise ConnectionFailed("too much was sent that the server hasn't got; begin anew")
            await socket.send(self._kept[-missed])
            arrived += 1

    async def aclose(self) -> None:
        """Close the connection: the session is over."""
        await self._socket.close()


def _object(frame: str | bytes) -> dict[str, Any]:
    """A frame's JSON object; empty if it is none."""
    try:
        found = json.loads(frame)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _seq(frame: str | bytes) -> int | None:
    """The number of an event; None for a frame without one."""
    own = _object(frame).get("specstream")
    seq = own.get("seq") if isinstance(own, dict) else None
    return seq if isinstance(seq, int) else None


@asynccontextmanager
async def resuming(
    url: str, resume_s: float, ready_timeout: float, options: dict[str, Any]
) -> AsyncGenerator[tuple[ClientSocket, str | bytes], None]:
    """Connect; gives the connection and its first event, and closes it at the end of the block.

    With ``resume_s`` of more than 0 it comes back if it breaks, where the server can do that.
    ``options`` are those of `dial`, whose errors are raised.
    """
    check_url(url, options["tls"])
    asked = with_query(url, "resumable=1") if resume_s > 0 else url
    socket, greeting = await dial(asked, ready_timeout=ready_timeout, **options)

    async def again(query: str) -> tuple[ClientConnection, str | bytes]:
        return await dial(with_query(url, query), ready_timeout=0.0, **options)

    async with AsyncExitStack() as stack:
        used: ClientSocket = await stack.enter_async_context(socket)
        if (token := _token(greeting)) is not None and resume_s > 0:
            used = made = ResumingSocket(socket, token, again, resume_s)
            stack.push_async_callback(made.aclose)
        yield used, greeting


def _token(greeting: str | bytes) -> str | None:
    """The token with which the session can be resumed, if the server gave one."""
    try:
        return str(_object(greeting)["specstream"]["resume"]["token"])
    except (TypeError, KeyError):
        return None
