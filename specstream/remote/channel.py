"""One end of a stage connection: a socket, and the protocol's rules applied to it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress

import anyio

from specstream.client.socket import CLOSE_TIMEOUT, DialedSocket, Socket, SocketClosed
from specstream.errors import ConnectionFailed
from specstream.remote.frames import MAX_MESSAGE, Frame, Violation
from specstream.remote.protocol import Item, StageRules
from specstream.signals import Signal, finished

__all__ = ["MAX_SIZE", "Channel", "DialedChannel"]

_log = logging.getLogger("specstream.remote")

MAX_SIZE = 4 * MAX_MESSAGE + 1024
"""Limit of the socket itself, which closes with 1009 and no error frame; above our own limit."""


class Channel:
    """Sends and receives the items and frames that the `StageRules` allow.

    One task writes for the life of the connection, so that a frame and its audio are sent together
    and a cancelled turn never cuts a message in two. The protocol's windows bound the queue of
    posted messages. The owner calls `close` or `abort` in the end.
    """

    def __init__(self, socket: Socket, rules: StageRules, peer: str) -> None:
        self.rules = rules
        self._socket = socket
        self._peer = peer
        self._outbox: deque[tuple[str | bytes, ...]] = deque()
        self._closing = False
        self._changed = Signal()
        self._writer = asyncio.create_task(self._write())

    def post(self, what: Item | Frame) -> None:
        """Queue an item or a frame.

        Raises:
            Violation: the rules don't allow it now; for an item, wait for `room` first.
            AdapterFailed: it is too long for a message.
        """
        self._outbox.append(self.rules.send(what))
        self._changed.notify()

    def took(self) -> None:
        """Count a received item as used; acknowledges it when an ack is due."""
        ack = self.rules.took()
        if ack is not None:
            self.post(ack)

    def drop(self) -> None:
        """Discard the messages that are posted and not written yet."""
        self._outbox.clear()

    async def room(self) -> None:
        """Wait until the peer's window has room for an item."""
        while not self.rules.room:
            await self._changed.wait()

    async def receive(self) -> Item | Frame:
        """Return the next item or frame (acks are handled here). Cancelling the call loses nothing.

        Raises:
            Violation: the peer broke the protocol; close the connection with its ``close_code``.
            ConnectionFailed: the connection is gone.
        """
        while True:
            try:
                message = await self._socket.receive()
            except SocketClosed as error:
                raise ConnectionFailed(f"{self._peer} is gone: {error}") from error
            received = self.rules.receive(message)
            self._changed.notify()
            if received is not None:
                return received

    async def close(self, code: int = 1000) -> None:
        """Write the queued messages, then close; a peer that doesn't answer is dropped. Idempotent.

        Not cancellable, but bounded in time. No other task may be in `receive`.
        """
        self._closing = True
        self._changed.notify()
        try:
            # Shorter than what a server waits for its connections when it stops.
            with anyio.move_on_after(0.75 * CLOSE_TIMEOUT, shield=True):
                await asyncio.wait({self._writer})
                async with anyio.create_task_group() as group:
                    group.start_soon(self._socket.close, code, "")
                    with suppress(SocketClosed):
                        while True:  # a full receive queue would hold back the close frame
                            await self._socket.receive()
        finally:
            self.abort()

    def abort(self) -> None:
        """Drop the connection now. Idempotent."""
        self._closing = True
        self._writer.cancel()
        self._socket.abort()

    async def _write(self) -> None:
        with suppress(SocketClosed):
            while self._outbox or not self._closing:
                if not self._outbox:
                    await self._changed.wait()
                    continue
                for message in self._outbox.popleft():
                    await self._socket.send(message)


class DialedChannel(Channel):
    """The end that uses an adapter, for one turn after another.

    Frames don't say to which turn they belong. So the connection is also read between turns (`rest`,
    `wake`): a frame that comes then is of no turn, and ends the connection.
    """

    def __init__(self, socket: DialedSocket, rules: StageRules, peer: str) -> None:
        super().__init__(socket, rules, peer)
        self._dialed = socket
        self._loop = asyncio.get_running_loop()
        self._watcher: asyncio.Task[None] | None = None
        self._quiet = anyio.Event()  # set once the peer has answered the ping after a turn

    @property
    def usable(self) -> bool:
        """Whether the connection is open, as far as this side knows."""
        return self._dialed.open and not self._closing

    @property
    def here(self) -> bool:
        """Whether the connection is of the running event loop, and not of an earlier one."""
        return self._loop is asyncio.get_running_loop()

    def rest(self) -> None:
        """The turn is over: until `wake`, whatever comes ends the connection."""
        self._quiet = anyio.Event()
        self._watcher = asyncio.create_task(self._watch(self._quiet))

    async def wake(self, patience_s: float) -> bool:
        """Return whether the connection may carry another turn; if not, it is dropped.

        That is certain once the peer has answered a ping that was sent after the last turn: all that it
        had sent before has come by then. Waits at most ``patience_s`` seconds for it.
        """
        reusable = False
        try:
            with anyio.move_on_after(patience_s):
                await self._quiet.wait()
                await self._stop_watching()
                with anyio.move_on_after(0):  # what came since the watcher last looked
                    await self._refuse_frames()
                reusable = self.usable
        finally:
            if not reusable:
                self.abort()
        return reusable

    async def close(self, code: int = 1000) -> None:
        """See `Channel.close`."""
        await self._stop_watching()
        await super().close(code)

    def abort(self) -> None:
        """See `Channel.abort`."""
        if self._watcher is not None:
            self._watcher.cancel()
        super().abort()

    async def _watch(self, quiet: anyio.Event) -> None:
        try:
            echo = await self._dialed.ping()
            echo.add_done_callback(lambda _: quiet.set())
            await self._refuse_frames()
        except SocketClosed:
            pass
        finally:
            quiet.set()

    async def _refuse_frames(self) -> None:
        """Wait for a frame, which belongs to no turn, or for the end of the connection."""
        try:
            await self.receive()
        except ConnectionFailed:
            pass
        except Violation as error:
            _log.warning("%s broke the protocol between two turns: %s", self._peer, error)
        self.abort()

    async def _stop_watching(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            await finished(asyncio.wait({self._watcher}))
            self._watcher = None
