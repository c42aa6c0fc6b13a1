"""Sockets that are not read: how long they are waited for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress

from websockets.asyncio.connection import Connection

from specstream.ws.realtime.audio import Clock

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
_SLACK = 1024  # frame headers, pings and pongs, which nobody counts


async def drop_when_unread(socket: Connection, written: Callable[[], int], timer: Clock) -> None:
    """Watch a socket for as long as the call runs; abort it when its peer has stopped reading.

    A peer that stops is invisible to a keepalive: the ping itself waits for room. ``written`` tells
    how many bytes were handed to the socket so far. Returns after the abort. Cancel it to end.
    """
    credit, handed, left = PATIENCE_S, 0, 0
    while True:
        await timer.sleep_until(timer.now() + _TICK_S)
        waiting = socket.transport.get_write_buffer_size()
        unsent, now_handed = waiting + _in_kernel(socket), written()
        now_left = now_handed - unsent
        if unsent <= now_handed - handed + _SLACK:
            credit = PATIENCE_S  # all that there was a tick ago has been read since, or nearly all
        else:
            earned = max(0, now_left - left) / MIN_BYTES_PER_S
            credit = min(PATIENCE_S, credit - _TICK_S + earned)
        handed, left = now_handed, now_left
        if credit <= 0 or waiting > MAX_UNSENT:
            socket.logger.info("a client that does not read is dropped")
            socket.transport.abort()
            return


def _in_kernel(socket: Connection) -> int:
    """Bytes that the kernel has not got rid of yet; 0 where it doesn't tell."""
    plain = socket.transport.get_extra_info("socket")
    if plain is not None and sys.platform != "win32":
        import fcntl
        import termios

        with suppress(OSError, ValueError):
            answer = fcntl.ioctl(plain.fileno(), termios.TIOCOUTQ, bytes(4))
            return int.from_bytes(answer, sys.byteorder)
    return 0
