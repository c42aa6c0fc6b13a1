"""What waits and what tells the time: a signal between tasks, and the clock that play-out goes by."""

from __future__ import annotations

import asyncio
from typing import Protocol

import anyio

__all__ = ["Clock", "LoopClock", "Signal"]


class Signal:
    """Wakes the tasks that wait for a change of something; each looks for itself what has changed.

    A change before `wait` is called wakes nobody: test what you wait for, then wait, in a loop.
    """

    def __init__(self) -> None:
        self._waited: asyncio.Event | None = (
            None  # made by who waits first: most changes wake nobody
        )

    def notify(self) -> None:
        """Wake all tasks that wait now."""
        waited, self._waited = self._waited, None
        if waited is not None:
            waited.set()

    async def wait(self) -> None:
        """Wait for the next `notify`. Cancelling the call changes nothing."""
        if self._waited is None:
            self._waited = asyncio.Event()
        await self._waited.wait()


class Clock(Protocol):
    """A monotonic clock that can be waited on."""

    def now(self) -> float:
        """Seconds, monotonic."""

    async def sleep_until(self, moment: float) -> None:
        """Return once ``now() >= moment``."""


class LoopClock:
    """The clock of the running event loop."""

    def now(self) -> float:
        """See `Clock`. Works in the loop's callbacks, too, where `anyio.current_time` raises."""
        return asyncio.get_running_loop().time()

    async def sleep_until(self, moment: float) -> None:
        """See `Clock`."""
        await anyio.sleep_until(moment)
