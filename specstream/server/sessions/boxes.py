"""A connection's inbox with its limits, and its ordered, numbered log on the way to the socket."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from specstream.realtime import protocol as pr
from specstream.realtime.events import AudioDeltaEvent, ServerEvent
from specstream.realtime.wire import Refused
from specstream.server.journal.record import SessionRecord
from specstream.signals import Signal

__all__ = ["Inbox", "Outbox"]

MAX_CHARS = 2 << 20
"""Characters of frames that may wait: 30 seconds of a microphone at 24 kHz."""
_SMALL = 256  # characters that any frame counts for, so that small ones are bounded, too

_AUDIO = pr.AudioAppend | pr.AudioCommit | pr.AudioClear


class Inbox:
    """Holds events until they are applied. A full one makes the reader of the socket wait.

    Audio may wait for the recogniser. A cancel or a truncation that comes while nothing but audio
    waits needn't: `overtakes` says so.

    Args:
        read: How many frames of the client came before.
    """

    def __init__(self, read: int = 0) -> None:
        self._waiting: deque[tuple[pr.ClientEvent | Refused, int, int]] = deque()
        self._read = read
        self._chars = 0
        self._others = 0  # of those waiting or being applied, the events that are no audio
        self._changed = Signal()

    def overtakes(self, event: pr.ClientEvent) -> bool:
        """Whether ``event`` may be applied at once, before the audio that came before it."""
        return not self._others and isinstance(event, pr.ResponseCancel | pr.ItemTruncate)

    def overtaken(self) -> None:
        """Count an event that was applied without being put here."""
        self._read += 1

    @property
    def leading(self) -> int:
        """How many frames, from the client's first one on, have been applied without a gap."""
        return self._waiting[0][2] if self._waiting else self._read

    async def put(self, event: pr.ClientEvent | Refused, chars: int) -> None:
        """Append an event, or the refusal of a frame. Waits for room; if cancelled, appends nothing."""
        while self._chars >= MAX_CHARS:
            await self._changed.wait()
        size = max(chars, _SMALL)
        self._waiting.append((event, size, self._read))
        self._read += 1
        self._chars += size
        self._others += not isinstance(event, _AUDIO)
        self._changed.notify()

    async def take(self) -> pr.ClientEvent | Refused:
        """Wait for the next event. Call `applied` after it, before the next `take`."""
        while not self._waiting:
            await self._changed.wait()
        return self._waiting[0][0]

    def applied(self) -> None:
        """Forget the event that `take` returned last."""
        event, size, _ = self._waiting.popleft()
        self._chars -= size
        self._others -= not isinstance(event, _AUDIO)
        self._changed.notify()


MAX_EVENTS = 64
MAX_BYTES = 128 << 10
MAX_AUDIO = 4
"""Queued events beyond which audio waits: a cancel can't take queued events back."""


class Outbox:
    """Numbers events and holds them until the writer takes them; bounded in number and bytes.

    A client that does not read fills it; then `put` waits, and the back-pressure reaches everything
    that makes events for this client, up to the engine.
    """

    def __init__(self, now: Callable[[], float], record: SessionRecord | None = None) -> None:
        self.record = record
        self._now = now
        self._started = now()
        self._frames: deque[str] = deque()
        self._bytes = 0
        self._finished = False
        self._changed = Signal()
        self.seq = 0
        """Events so far."""

    def go_on(self, seq: int, ago_s: float) -> None:
        """Go on with the session's event number ``seq``; it began ``ago_s`` seconds ago."""
        self.seq, self._started = seq, self._now() - ago_s

    @property
    def t_ms(self) -> float:
        """Milliseconds since the session began."""
        return round((self._now() - self._started) * 1e3, 3)

    async def put(self, *events: ServerEvent) -> int:
        """Append events, all at once; returns their length in characters.

        Cancelling the call appends nothing.
        """
        audio = isinstance(events[0], AudioDeltaEvent)
        while len(self._frames) >= (MAX_AUDIO if audio else MAX_EVENTS) or self._bytes >= MAX_BYTES:
            await self._changed.wait()
        return sum(map(self._append, events))

    def offer(self, event: ServerEvent) -> None:
        """Append an event that is useless when late; drop it if more than `MAX_AUDIO` are queued."""
        if len(self._frames) <= MAX_AUDIO and self._bytes < MAX_BYTES:
            self._append(event)

    def _append(self, event: ServerEvent) -> int:
        event.specstream.seq = self.seq
        event.specstream.t_ms = self.t_ms
        event.event_id = f"event_{self.seq}"
        self.seq += 1
        frame = event.model_dump_json()
        if self.record is not None:
            self.record.saw(event, frame)
        self._frames.append(frame)
        self._bytes += len(frame)
        self._changed.notify()
        return len(frame)

    def finish(self) -> None:
        """Let `take` return None after the events in the queue: no more will come."""
        self._finished = True
        self._changed.notify()

    async def take(self) -> str | None:
        """Return the next frame to write; None after the last one."""
        while not self._frames:
            if self._finished:
                return None
            await self._changed.wait()
        frame = self._frames.popleft()
        self._bytes -= len(frame)
        self._changed.notify()
        return frame
