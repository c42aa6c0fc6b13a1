"""One connection's ordered, numbered event log, on its way to the socket."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import anyio

from specstream.ws.realtime.events import AudioDelta, ServerEvent

__all__ = ["Outbox"]

MAX_EVENTS = 64
MAX_BYTES = 128 << 10
MAX_AUDIO = 4
"""Events in the queue beyond which audio waits: what is queued can't be taken back by a cancel."""


class Outbox:
    """Numbers events and keeps them until the one writer takes them; bounded in number and bytes.

    A client that does not read fills it; then `put` waits, and with it everything that makes events
    for this client, back to the engine.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._started = now()
        self._frames: deque[str] = deque()
        self._bytes = 0
        self._seq = 0
        self._finished = False
        self._changed = anyio.Event()

    @property
    def t_ms(self) -> float:
        """Milliseconds since the session began."""
        return round((self._now() - self._started) * 1e3, 3)

    @property
    def seq(self) -> int:
        """How many events there were."""
        return self._seq

    async def put(self, event: ServerEvent) -> None:
        """Enter an event into the log. Cancelling the call enters nothing."""
        room = MAX_AUDIO if isinstance(event, AudioDelta) else MAX_EVENTS
        while len(self._frames) >= room or self._bytes >= MAX_BYTES:
            await self._changed.wait()
        event.specstream.seq = self._seq
        event.specstream.t_ms = self.t_ms
        event.event_id = f"event_{self._seq}"
        self._seq += 1
        frame = event.model_dump_json()
        self._frames.append(frame)
        self._bytes += len(frame)
        self._notify()

    def finish(self) -> None:
        """Nothing more is worth waiting for: what is there is still taken."""
        self._finished = True
        self._notify()

    async def take(self) -> str | None:
        """The next frame to write; None after the last one."""
        while not self._frames:
            if self._finished:
                return None
            await self._changed.wait()
        frame = self._frames.popleft()
        self._bytes -= len(frame)
        self._notify()
        return frame

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
