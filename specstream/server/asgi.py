"""Runs an ASGI application under uvicorn's protocols, on a socket and an event loop of ours."""

from __future__ import annotations

import asyncio
import logging
import os
import socket as sockets
import ssl
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import h11
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.http11 import Request

from specstream.client.dial import LOG
from specstream.client.socket import CLOSE_TIMEOUT
from specstream.errors import PortUnavailable
from specstream.realtime.wire import MAX_FRAME
from specstream.server.auth import check_key
from specstream.server.limits import SEND_BUFFER
from specstream.server.socket import TRANSPORT
from specstream.signals import finished

__all__ = ["PING_S", "PONG_S", "Front", "check_address", "listen_app", "location"]

_log = logging.getLogger("specstream.server")

NOT_READY = "not ready yet; try again"
"""What clients are told while models load."""

_WRITE_LIMIT = 16 << 10
"""Bytes of a WebSocket's output that wait in the process before its session waits."""
_READ = 4 << 10  # bytes that are read at once, so that a flood holds up nobody for long
_KEEP_S = 75  # seconds that an HTTP connection waits for its next request: between turns of a talk
HEAD_S = 30.0
"""Seconds that a client has for a request's head, from the connection's or the head's beginning."""
_LATE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_UNREADABLE = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
MOST_WAITING = 512
"""Connections without a request; fewer where the process may open fewer than 2,048 files."""
PING_S = 20.0
"""Seconds between two pings."""
PONG_S = 60.0
"""Seconds for a pong, which waits behind the audio that a slow reader has not read yet."""


class _Frames(WebSocketsSansIOProtocol):
    """uvicorn's WebSockets with a small write buffer, and a transport that the application sees."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = LOG  # whose filter hides keys
        self.conn.logger = LOG
        self.close_timeout = CLOSE_TIMEOUT

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the buffer's limit."""
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(_WRITE_LIMIT)
        if hasattr(transport, "max_size"):  # asyncio's: all frames of a piece are parsed at once
            transport.max_size = _READ

    def handle_connect(self, event: Request) -> None:
        """Tell the application of the transport, before its task runs."""
        super().handle_connect(event)
        if hasattr(self, "scope"):
            self.scope["extensions"][TRANSPORT] = {"transport": self.transport}

    async def send(self, message: Any) -> None:
        """Count a refusal as a handshake that has ended, which uvicorn would log as an error."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True


class _Waiting:
    """The connections that ask for nothing; whoever has waited longest makes room for one more."""

    def __init__(self) -> None:
        self._all: dict[_Requests, None] = {}
        self._most = min(MOST_WAITING, _files() // 4)
        self._told = False

    def add(self, one: _Requests) -> None:
        self.remove(one)
        self._all[one] = None
        if len(self._all) > self._most:
            if not self._told:
                self._told = True
                _log.warning("over %d connections without a request: closing the oldest", self._most)
            oldest = next(iter(self._all))
            self.remove(oldest)
            oldest.transport.close()

    def remove(self, one: _Requests) -> None:
        self._all.pop(one, None)


class _Requests(H11Protocol):
    """uvicorn's HTTP, where a connection without a request has bounds in time and in number."""

    def __init__(self, waiting: _Waiting, **options: Any) -> None:
        super().__init__(**options)
        self._waiting = waiting
        self._overdue: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._expect()
        self._waiting.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._begun()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Look whether a request's head is there; more bytes of one give it no more time."""
        super().data_received(data)
        if self.conn.our_state in (h11.IDLE, h11.DONE):  # DONE: what is left of a refused body
            self._expect()
        else:
            self._begun()

    def on_response_complete(self) -> None:
        """Wait for the next request; uvicorn gives it the time between two requests to begin."""
        super().on_response_complete()
        if self.conn.our_state in (h11.IDLE, h11.DONE) and not self.transport.is_closing():
            self._waiting.add(self)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Refuse a handshake that websockets can't read, which uvicorn would leave unanswered."""
        super().handle_websocket_upgrade(event)
        begun = self.transport.get_protocol()
        if isinstance(begun, _Frames) and not begun.handshake_initiated:
            begun.close_sent = True  # nothing more to answer when the server stops
            self.transport.write(_UNREADABLE)
            self.transport.close()

    def _expect(self) -> None:
        if self._overdue is None:
            self._overdue = self.loop.call_later(HEAD_S, self._give_up)

    def _begun(self) -> None:
        self._waiting.remove(self)
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    def _give_up(self) -> None:
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            self.transport.write(_LATE)
        self.transport.close()


def _files() -> int:
    """How many files the process may open."""
    if sys.platform == "win32":  # where sockets are no files
        return 1 << 20
    import resource

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if most == resource.RLIM_INFINITY else most


class Front:
    """Stands for an application that is still loading, then hands everything on to it.

    Until ``app`` is set, requests get 503 (``/health`` 200), and WebSockets the close code 1013.
    """

    def __init__(self) -> None:
        self.app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if self.app is not None:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            socket = WebSocket(scope, receive, send)
            await socket.accept()
            await socket.close(1013, NOT_READY)
        elif scope["type"] == "http":
            status = 200 if scope["path"] == "/health" else 503
            told = {"status": "loading", "error": {"message": NOT_READY, "type": "server_error"}}
            response = JSONResponse(told, status, {"Retry-After": "2"} if status == 503 else None)
            await response(scope, receive, send)


@asynccontextmanager
async def listen_app(
    app: ASGIApp,
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    max_frame: int = MAX_FRAME,
    send_buffer: int = SEND_BUFFER,
    reuse_port: bool = False,
) -> AsyncGenerator[int, None]:
    """Serve an application while the block runs; gives the port (``port=0``: a free one).

    uvicorn's own server isn't used: it takes the process's signals, and polls. ``max_frame`` are bytes
    of a client's largest frame, ``send_buffer`` those of each connection's buffer in the kernel.
    ``reuse_port``: other processes may listen there, too; the kernel hands out the connections.
    Leaving the block closes all connections; WebSockets get a moment to end by themselves.

    Raises:
        PortUnavailable: the address is taken, not permitted, or not an address of this machine.
    """
    config = Config(
        app,
        http=H11Protocol,
        ws=_Frames,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_S,
        ws_max_size=max_frame,
        ws_ping_interval=PING_S,
        ws_ping_timeout=PONG_S,
        ws_per_message_deflate=False,  # PCM doesn't shrink, and deflate delays small frames
    )
    config.load()
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    state = ServerState()

    waiting = _Waiting()

    def protocol() -> asyncio.Protocol:
        return _Requests(waiting, config=config, server_state=state, app_state={})

    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(protocol, host, port, ssl=tls, reuse_port=reuse_port or None)
    except (OSError, OverflowError, UnicodeError, ValueError) as error:  # no such option here
        raise _unavailable(host, port, error) from error
    for listening in server.sockets:  # every connection inherits it
        listening.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, send_buffer)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await finished(_close(state))


async def _close(state: ServerState) -> None:
    """End what is under way: the application was told; what goes on nevertheless is cancelled."""
    if state.tasks:
        await asyncio.wait(set(state.tasks), timeout=CLOSE_TIMEOUT)
    for connection in list(state.connections):
        cast(Any, connection).shutdown()
    for task in set(state.tasks):
        task.cancel()
    if state.tasks:
        await asyncio.wait(set(state.tasks), timeout=CLOSE_TIMEOUT)
    for connection in list(state.connections):
        if connection.transport is not None:
            connection.transport.abort()


async def check_address(host: str, port: int, keyed: bool) -> None:
    """Take an address for a moment, so that a bad one fails before the models are loaded.

    Cancelling the call closes the port.

    Raises:
        ConfigError: see `check_key`.
        PortUnavailable: see `listen_app`.
    """
    check_key(host, keyed)
    async with listen_app(Front(), host, port):
        pass


def location(host: str, port: int) -> str:
    """Return ``host:port`` as a URL has it: an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _unavailable(host: str, port: int, error: OSError | OverflowError | ValueError) -> PortUnavailable:
    """Return the error for an address that can't be listened on."""
    return PortUnavailable(
        f"can't listen on {location(host, port)}: {_reason(error)}; "
        "choose another port (0 takes a free one) or an address of this machine"
    )


def _reason(error: OSError | OverflowError | ValueError) -> str:
    number = getattr(error, "errno", None) or 0
    # asyncio repeats the address in strerror; errors of name resolution have negative numbers.
    return os.strerror(number) if number > 0 else getattr(error, "strerror", None) or str(error)
