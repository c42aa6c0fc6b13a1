"""One connection's client events that were read and not applied yet, in order, bounded in size."""

from __future__ import annotations

from collections import deque

from specstream.signals import Signal
from specstream.ws.realtime import protocol as pr
from specstream.ws.realtime.wire import Refused

__all__ = ["Inbox"]

MAX_CHARS = 2 << 20
"""Characters of frames that may wait: 30 seconds of a microphone at 24 kHz."""
_SMALL = 256  # characters that any frame counts for, so that small ones are bounded, too

_AUDIO = pr.AudioAppend | pr.AudioCommit | pr.AudioClear


class Inbox:
    """Holds events until they are applied. A full one makes the reader of the socket wait.

    Audio may wait for the recogniser. A cancel or a truncation that comes while nothing but audio
    waits needn't: `overtakes` says so.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[pr.ClientEvent | Refused, int]] = deque()
        self._chars = 0
        self._others = 0  # of those waiting or being applied, the events that are no audio
        self._changed = Signal()

    def overtakes(self, event: pr.ClientEvent) -> bool:
        """Whether ``event`` may be applied at once, before the audio that came before it."""
        return not self._others and isinstance(event, pr.ResponseCancel | pr.ItemTruncate)

    async def put(self, event: pr.ClientEvent | Refused, chars: int) -> None:
        """Append an event, or the refusal of a frame. Waits for room; if cancelled, appends nothing."""
        while self._chars >= MAX_CHARS:
            await self._changed.wait()
        size = max(chars, _SMALL)
        self._waiting.append((event, size))
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
        event, size = self._waiting.popleft()
        self._chars -= size
        self._others -= not isinstance(event, _AUDIO)
        self._changed.notify()
