"""Opens a WebSocket server with common defaults and one typed error."""

from __future__ import annotations

import os
import socket as sockets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from websockets.asyncio.server import ServerConnection, serve

from specstream.client.dial import LOG
from specstream.errors import PortUnavailable
from specstream.server.auth import check_key

__all__ = [
    "CLOSE_TIMEOUT",
    "DEFAULTS",
    "NOT_READY",
    "check_address",
    "listen",
    "location",
    "unavailable",
]

CLOSE_TIMEOUT = 2.0
"""Seconds that a closing handshake may take before the connection is dropped."""
NOT_READY = "not ready yet; try again"
"""What clients are told while models load."""

DEFAULTS: dict[str, Any] = {
    "compression": None,  # PCM doesn't shrink, and deflate doubles the latency of small frames
    "max_size": 1 << 20,
    "write_limit": 16 << 10,
    "close_timeout": CLOSE_TIMEOUT,
    "logger": LOG,
}
"""Options of every WebSocket server, unless it has its own."""


@asynccontextmanager
async def listen(
    handler: Callable[[ServerConnection], Awaitable[None]],
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    send_buffer: int | None = None,
    **options: Any,
) -> AsyncGenerator[int, None]:
    """Serve WebSocket connections while the block runs; gives the port (``port=0``: a free one).

    ``options`` go to `websockets.asyncio.server.serve` and override the defaults here: no
    compression, messages of at most 1 MiB, a write buffer of 16 KiB. ``send_buffer`` sets the
    kernel's send buffer of each connection, in bytes. Leaving or cancelling the block closes every
    connection with 1001 and waits for the handlers.

    Raises:
        PortUnavailable: the address is taken, not permitted, or not an address of this machine.
    """
    try:
        server = await serve(handler, host, port, **{**DEFAULTS, **options})
    except (OSError, OverflowError, UnicodeError) as error:
        raise unavailable(host, port, error) from error
    if send_buffer is not None:
        for listening in server.sockets:  # every connection inherits it
            listening.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, send_buffer)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        with anyio.move_on_after(5 * CLOSE_TIMEOUT, shield=True):
            await server.wait_closed()


async def check_address(host: str, port: int, keyed: bool) -> None:
    """Listen for a moment, so that a bad address fails before the models are loaded.

    Cancelling the call closes the port.

    Raises:
        ConfigError: see `check_key`.
        PortUnavailable: see `listen`.
    """
    check_key(host, keyed)

    async def refuse(socket: ServerConnection) -> None:
        await socket.close(1013, NOT_READY)

    async with listen(refuse, host, port):
        pass


def location(host: str, port: int) -> str:
    """Return ``host:port`` as a URL has it: an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def unavailable(
    host: str, port: int, error: OSError | OverflowError | ValueError
) -> PortUnavailable:
    """Return the error for an address that can't be listened on."""
    return PortUnavailable(
        f"can't listen on {location(host, port)}: {_reason(error)}; "
        "choose another port (0 takes a free one) or an address of this machine"
    )


def _reason(error: OSError | OverflowError | ValueError) -> str:
    number = getattr(error, "errno", None) or 0
    # asyncio repeats the address in strerror; errors of name resolution have negative numbers.
    return os.strerror(number) if number > 0 else getattr(error, "strerror", None) or str(error)
