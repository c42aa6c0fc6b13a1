"""A WebSocket as the protocols see it, whichever library holds it, and one that was dialled here."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State

__all__ = ["CLOSE_TIMEOUT", "DialedSocket", "Socket", "SocketClosed"]

CLOSE_TIMEOUT = 2.0
"""Seconds that a closing handshake may take before the connection is dropped."""


class SocketClosed(Exception):
    """The peer has gone, or the socket was closed here.

    Attributes:
        code: The close code that the peer sent; 1006: none.
    """

    def __init__(self, code: int = 1006, why: str | None = None) -> None:
        super().__init__(why or f"close code {code}")
        self.code = code


class Socket(Protocol):
    """A WebSocket connection that is open."""

    async def receive(self) -> str | bytes:
        """Wait for a frame; cancelling loses none.

        Raises:
            SocketClosed: there will be none any more.
        """
        ...

    async def send(self, frame: str | bytes) -> None:
        """Send a frame of text or of bytes, once there is room for more.

        Raises:
            SocketClosed: nobody will read it.
        """
        ...

    async def close(self, code: int, reason: str) -> None:
        """Close the connection; idempotent."""
        ...

    def abort(self) -> None:
        """Drop the connection, whatever waits to be sent."""
        ...


class DialedSocket:
    """A `Socket` over a connection of the websockets library."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def open(self) -> bool:
        """Whether the connection is open, as far as this side knows."""
        return self._connection.state is State.OPEN

    async def receive(self) -> str | bytes:
        """See `Socket.receive`."""
        try:
            return await self._connection.recv()
        except ConnectionClosed as error:
            raise _closed(error) from error

    async def send(self, frame: str | bytes) -> None:
        """See `Socket.send`."""
        try:
            await self._connection.send(frame)
        except ConnectionClosed as error:
            raise _closed(error) from error

    async def ping(self) -> asyncio.Future[float]:
        """Send a ping; the future is done once the peer has answered, or has gone.

        Raises:
            SocketClosed: nobody will read it.
        """
        try:
            return asyncio.ensure_future(await self._connection.ping())
        except ConnectionClosed as error:
            raise _closed(error) from error

    async def close(self, code: int, reason: str) -> None:
        """See `Socket.close`."""
        with suppress(AttributeError):  # as in `abort`
            await self._connection.close(code, reason)

    def abort(self) -> None:
        """See `Socket.abort`."""
        with suppress(AttributeError):  # raised if the transport closed during a write
            self._connection.transport.abort()


def _closed(error: ConnectionClosed) -> SocketClosed:
    return SocketClosed(1006 if error.rcvd is None else error.rcvd.code, str(error))
