"""Sessions that outlive their socket: what a client has not acknowledged is kept and sent again."""

from __future__ import annotations

import json
import logging
import secrets
from collections import deque
from contextlib import suppress

import anyio
import anyio.lowlevel

from specstream.client.socket import SocketClosed
from specstream.errors import JournalFailed, JournalTaken
from specstream.realtime.events import ErrorEvent, ResumedEvent
from specstream.realtime.resources import ErrorDetail
from specstream.server.journal.record import SessionRecord
from specstream.server.journal.restored import RestoredSession
from specstream.server.keys import KeyAccount
from specstream.server.limits import drop_slow_reader
from specstream.server.socket import ServedSocket
from specstream.signals import Clock, Signal

__all__ = ["ResumableSocket", "new_token"]

MAX_UNACKED = 8 << 20
"""Bytes of events that a client has not acknowledged; then its session waits. Two minutes of speech."""
_LEFT = (1000, 1001)  # close codes by which a client says that it won't come again
_ACK = '"specstream.ack"'
_ACK_CHARS = 200

_log = logging.getLogger("specstream.realtime")


def new_token() -> str:
    """Return a token for a session; who has it can read the session."""
    return secrets.token_urlsafe(24)


class ResumableSocket:
    """The socket of a session, whichever connection the client has at the moment.

    Frames are numbered in the order in which they are sent, as the session's events are. Each is kept
    until the client has acknowledged it. Without a connection the session goes on, until ``resume_s``
    have passed or `MAX_UNACKED` bytes are kept.

    Args:
        socket: The first connection.
        account: Whose key opened the session; only the same may resume it.
        resume_s: Seconds that the session waits for its client to come back.
        token: The session's; None: a new one.
        record: Where frames are written down before they are sent.
        restored: The session as an earlier process has left it; ``socket`` isn't used before `serve`.
    """

    def __init__(
        self,
        socket: ServedSocket,
        account: KeyAccount,
        resume_s: float,
        *,
        token: str | None = None,
        record: SessionRecord | None = None,
        restored: RestoredSession | None = None,
    ) -> None:
        self.token = token or new_token()
        self.account = account
        self.resume_s = resume_s
        self.record = record
        self.received = 0
        """Frames that came from the client, without acknowledgements."""
        self.broken = False
        """Whether the session could not be written down."""
        self.dismissed = False
        """Whether the client said that it won't come again."""
        self.address = socket.address
        self._socket: ServedSocket | None = socket
        self._frames: deque[str] = deque()
        self._first = 0  # number of the oldest frame that is kept
        if restored is not None:
            self._socket, self.received = None, restored.applied
            self._frames.extend(frame.text for frame in restored.frames)
            self._first = restored.frames[0].seq if restored.frames else 0
        self._next = self._first  # to write
        self._bytes = sum(map(len, self._frames))
        self._written = 0  # bytes, to the present connection
        self._writing = anyio.Lock()
        self._changed = Signal()
        self._closed = False
        self._returning = 0  # connections that are being told that the session goes on

    @property
    def made(self) -> int:
        """How many frames there were."""
        return self._first + len(self._frames)

    @property
    def closed(self) -> bool:
        """Whether the session can't be resumed any more."""
        return self._closed

    async def receive(self) -> str | bytes:
        """See `Socket.receive`; waits for the client to come back."""
        while not self._closed:
            socket = self._socket
            if socket is None:
                with anyio.move_on_after(self.resume_s) as waited:
                    while self._socket is None and not self._closed:
                        await self._changed.wait()
                if waited.cancelled_caught and self._socket is None and not self._returning:
                    self._closed = True
                continue
            try:
                frame = await socket.receive()
            except SocketClosed as left:
                if left.code in _LEFT and self._socket is socket and not self._closed:
                    self._closed = self.dismissed = True
                self._detach(socket)
                continue
            if self._socket is not socket:
                continue  # the next connection is told that this frame hasn't come
            if isinstance(frame, str) and _ACK in frame[:_ACK_CHARS] and self._acknowledges(frame):
                await anyio.lowlevel.checkpoint()
                continue
            self.received += 1
            return frame
        self._changed.notify()
        raise SocketClosed

    async def send(self, frame: str | bytes) -> None:
        """See `Socket.send`; waits while too much is unacknowledged."""
        assert isinstance(frame, str), "the protocol has no frames of bytes"
        while self._bytes >= MAX_UNACKED and not self._closed:
            await self._changed.wait()
        if self._closed:
            raise SocketClosed
        if self.record is not None:
            await self._commit(self.record)
        self._frames.append(frame)
        self._bytes += len(frame)
        await self._write()

    async def keep(self) -> None:
        """Note in the journal that the session is alive; it ends here if another process has it."""
        if self.record is None or self.broken:
            return
        try:
            await self.record.commit(touch=True)
        except JournalTaken:
            self.broken = self._closed = True
            self._leave_present()
            self._changed.notify()
        except JournalFailed as error:
            _log.warning("a session can't be noted as alive: %s", error)  # the next frame tells it

    async def _commit(self, record: SessionRecord) -> None:
        """Write down what is about to be sent, or end the session here: it can be resumed elsewhere."""
        try:
            await record.commit()
        except JournalFailed as error:
            self.broken = True
            if not isinstance(error, JournalTaken):
                _log.error("a session ends: %s", error)
                await self._tell(ErrorEvent(error=ErrorDetail.of(error, None)))
            await self.close(1011, error.code)
            raise SocketClosed from error

    async def _tell(self, event: ErrorEvent) -> None:
        """Send an event that is no part of the session."""
        if self._socket is not None:
            with suppress(SocketClosed):
                await self._socket.send(event.model_dump_json(exclude={"specstream"}))

    async def _write(self) -> None:
        async with self._writing:
            while (socket := self._socket) is not None and self._next < self.made:
                frame = self._frames[self._next - self._first]
                try:
                    await socket.send(frame)
                except SocketClosed:  # `receive` learns why, and whether the client will come again
                    return
                if self._socket is socket:
                    self._next += 1
                    self._written += len(frame)

    def _acknowledges(self, frame: str) -> bool:
        """Whether a frame is an acknowledgement; if so, take it."""
        try:
            event = json.loads(frame)
        except (ValueError, RecursionError):
            return False
        if not isinstance(event, dict) or event.get("type") != "specstream.ack":
            return False
        seq = event.get("seq")
        if isinstance(seq, int) and not isinstance(seq, bool):
            self._forget(min(seq, self._next - 1))
        return True

    def _forget(self, seq: int) -> None:
        """Drop the frames up to the one with this number."""
        if self.record is not None and self._frames and self._first <= seq:
            self.record.forget(seq)
        while self._frames and self._first <= seq:
            self._bytes -= len(self._frames.popleft())
            self._first += 1
        self._changed.notify()

    def can_resume(self, seen: int) -> bool:
        """Whether all frames after the one with the number ``seen`` are still here; -1: all frames."""
        return not self._closed and self._first - 1 <= seen < self.made

    async def serve(self, socket: ServedSocket, seen: int, timer: Clock) -> bool:
        """Use a new connection until it ends; what comes after ``seen`` is sent again.

        False: that isn't here any more, since another connection has come back meanwhile.
        """
        self._leave_present()
        self._returning += 1  # from here on the time in which it may come back has not passed
        try:
            async with self._writing:  # whoever wrote to the old one has ended
                if not self.can_resume(seen):
                    return False
                self._leave_present()  # one that came back while this one waited
                self._forget(seen)
                self._next, self._written = self._first, 0
                resumed = ResumedEvent(received=self.received)
                resumed.specstream.seq = seen
                await socket.send(resumed.model_dump_json())
                self._socket = socket
                self._changed.notify()
        except SocketClosed:
            return True
        finally:
            self._returning -= 1
        async with anyio.create_task_group() as group:
            group.start_soon(drop_slow_reader, socket, lambda: self._written, timer)
            group.start_soon(self._write)
            await self.left(socket)
            group.cancel_scope.cancel()
        return True

    def _leave_present(self) -> None:
        old, self._socket = self._socket, None
        if old is not None:
            old.abort()
            self._changed.notify()

    async def left(self, socket: ServedSocket) -> None:
        """Wait until a connection is no longer used."""
        while self._socket is socket and not self._closed:
            await self._changed.wait()

    def _detach(self, socket: ServedSocket) -> None:
        if self._socket is socket:
            self._socket = None
        self._changed.notify()

    async def close(self, code: int, reason: str) -> None:
        """See `Socket.close`: the session is over."""
        self._closed = True
        self._changed.notify()
        if self._socket is not None:
            await self._socket.close(code, reason)

    def unread(self) -> tuple[int, int]:
        """See `ServedSocket.unread`."""
        return self._socket.unread() if self._socket is not None else (0, 0)

    def gone(self) -> bool:
        """See `ServedSocket.gone`."""
        return self._socket is not None and self._socket.gone()

    def abort(self) -> None:
        """See `Socket.abort`: the session waits for another connection."""
        if self._socket is not None:
            self._socket.abort()
            self._detach(self._socket)
