"""A connection that a server accepted, whichever ASGI server holds the socket."""

from __future__ import annotations

import asyncio
import select
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol

from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from specstream.client.socket import Socket, SocketClosed

__all__ = ["TRANSPORT", "AsgiSocket", "ServedSocket", "deny"]

TRANSPORT = "specstream.transport"
"""The ASGI extension with the asyncio transport of a WebSocket; other hosts than ours have none."""


class ServedSocket(Socket, Protocol):
    """A `Socket` that a server accepted: what a session asks of it besides."""

    @property
    def address(self) -> str:
        """The address that the client connects from."""
        ...

    def unread(self) -> tuple[int, int]:
        """Bytes that were sent and wait in this process, and in the kernel; 0 where it isn't known."""
        ...

    def gone(self) -> bool:
        """Whether the peer has closed its end, though not all that it sent was received."""
        ...


class AsgiSocket:
    """A `ServedSocket` over Starlette's, for any ASGI server."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        found: Mapping[str, Any] = socket.scope.get("extensions", {}).get(TRANSPORT, {})
        self._transport: asyncio.Transport | None = found.get("transport")
        self._closed = False

    @property
    def address(self) -> str:
        """See `ServedSocket.address`."""
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

    async def send(self, frame: str | bytes) -> None:
        """See `Socket.send`."""
        send = self._socket.send_text if isinstance(frame, str) else self._socket.send_bytes
        try:
            await send(frame)  # type: ignore[arg-type]
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
        """See `ServedSocket.unread`."""
        if self._transport is None:
            return 0, 0
        return self._transport.get_write_buffer_size(), _in_kernel(self._transport)

    def gone(self) -> bool:
        """See `ServedSocket.gone`."""
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


async def deny(socket: WebSocket, refusal: Response) -> None:
    """Answer a handshake with an HTTP response."""
    if "websocket.http.response" in socket.scope.get("extensions", {}):
        await socket.send_denial_response(refusal)
    else:  # the host can't: it answers 403
        await socket.close()


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
