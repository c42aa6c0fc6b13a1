"""What a session sees of its connection, whichever server holds the socket."""

from __future__ import annotations

import asyncio
import select
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

__all__ = ["TRANSPORT", "AsgiSocket", "Socket", "SocketClosed"]

TRANSPORT = "specstream.transport"
"""The ASGI extension with the asyncio transport of a WebSocket; other hosts than ours have none."""


class SocketClosed(Exception):
    """The peer has gone, or the socket was closed here.

    Attributes:
        code: The close code that the peer sent; 1006: none.
    """

    def __init__(self, code: int = 1006) -> None:
        super().__init__(code)
        self.code = code


class Socket(Protocol):
    """A WebSocket connection that was accepted."""

    @property
    def address(self) -> str:
        """The address that the client connects from."""
        ...

    async def receive(self) -> str | bytes:
        """Wait for a frame; cancelling loses none.

        Raises:
            SocketClosed: there will be none any more.
        """
        ...

    async def send(self, text: str) -> None:
        """Send a frame of text, once there is room for more.

        Raises:
            SocketClosed: nobody will read it.
        """
        ...

    async def close(self, code: int, reason: str) -> None:
        """Close the connection; idempotent."""
        ...

    def unread(self) -> tuple[int, int]:
        """Bytes that were sent and wait in this process, and in the kernel; 0 where it isn't known."""
        ...

    def gone(self) -> bool:
        """Whether the peer has closed its end, though not all that it sent was received."""
        ...

    def abort(self) -> None:
        """Drop the connection, whatever waits to be sent."""
        ...


class AsgiSocket:
    """A `Socket` over Starlette's, for any ASGI server."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        found: Mapping[str, Any] = socket.scope.get("extensions", {}).get(TRANSPORT, {})
        self._transport: asyncio.Transport | None = found.get("transport")
        self._closed = False

    @property
    def address(self) -> str:
        """See `Socket.address`."""
        client = self._socket.client
        return client.host if client is not None else ""

    async def receive(self) -> str | bytes:
        """See `Socket.receive`."""
        try:
            message = await self._socket.receive()
        except (RuntimeError, WebSocketDisconnect):
            raise SocketClosed from None
        if message["type"] != "websocket.receive":
            raise SocketClosed(message.get("code") or 1006)
        text: str | None = message.get("text")
        frame: bytes = message.get("bytes") or b""
        return frame if text is None else text

    async def send(self, text: str) -> None:
        """See `Socket.send`."""
        try:
            await self._socket.send_text(text)
        except (RuntimeError, OSError, WebSocketDisconnect):
            raise SocketClosed from None

    async def close(self, code: int, reason: str) -> None:
        """See `Socket.close`."""
        if self._closed or self._socket.client_state is WebSocketState.DISCONNECTED:
            return
        self._closed = True
        with suppress(RuntimeError, OSError, WebSocketDisconnect):
            await self._socket.close(code, reason)

    def unread(self) -> tuple[int, int]:
        """See `Socket.unread`."""
        if self._transport is None:
            return 0, 0
        return self._transport.get_write_buffer_size(), _in_kernel(self._transport)

    def gone(self) -> bool:
        """See `Socket.gone`."""
        plain = self._transport and self._transport.get_extra_info("socket")
        hangup = getattr(select, "POLLRDHUP", 0)  # where the platform tells
        if not plain or not hangup or sys.platform == "win32":
            return False
        if plain.fileno() < 0:  # closed, which the session has yet to see
            return True
        poll = select.poll()
        poll.register(plain.fileno(), hangup)
        return bool(poll.poll(0))

    def abort(self) -> None:
        """See `Socket.abort`."""
        if self._transport is not None:
            self._transport.abort()


def _in_kernel(transport: asyncio.Transport) -> int:
    """Return the bytes in the kernel's send queue; 0 on platforms that don't report them."""
    plain = transport.get_extra_info("socket")
    if plain is not None and sys.platform != "win32":
        import fcntl
        import termios

        with suppress(OSError, ValueError):
            answer = fcntl.ioctl(plain.fileno(), termios.TIOCOUTQ, bytes(4))
            return int.from_bytes(answer, sys.byteorder)
    return 0
