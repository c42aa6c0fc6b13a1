"""Sockets that are not read: how long they are waited for."""

from __future__ import annotations

from collections.abc import Callable

from websockets.asyncio.connection import Connection

from specstream.ws.audio import Clock

__all__ = ["MIN_BYTES_PER_S", "PATIENCE_S", "SEND_BUFFER", "drop_when_unread"]

PATIENCE_S = 20.0
"""Seconds that a reader may stand still with something to read; reading earns them back."""
MIN_BYTES_PER_S = 4096
"""Whoever reads less than this for as long as something waits for him uses his patience up."""
MAX_UNSENT = 4 << 20
"""Bytes in the process that wait for a reader; only answers to a flood of pings come to that."""
SEND_BUFFER = 64 << 10
"""Bytes of a socket's send buffer in the kernel: what lies there can't be taken back by a cancel."""
_TICK_S = 1.0


async def drop_when_unread(socket: Connection, written: Callable[[], int], timer: Clock) -> None:
    """Watch a socket for as long as the call runs; abort it when its peer has stopped reading.

    A peer that stops is invisible to a keepalive: the ping itself waits for room. ``written`` tells
    how many bytes were handed to the socket so far. Returns after the abort. Cancel it to end.
    """
    credit, before = PATIENCE_S, 0
    while True:
        await timer.sleep_until(timer.now() + _TICK_S)
        unsent = socket.transport.get_write_buffer_size()
        left = written() - unsent
        if unsent == 0:
            credit = PATIENCE_S
        else:
            earned = max(0, left - before) / MIN_BYTES_PER_S
            credit = min(PATIENCE_S, credit - _TICK_S + earned)
        before = left
        if credit <= 0 or unsent > MAX_UNSENT:
            socket.logger.info("a client that does not read is dropped")
            socket.transport.abort()
            return
