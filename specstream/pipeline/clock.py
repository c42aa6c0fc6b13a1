"""The clock that play-out and pacing go by; tests bring their own."""

from __future__ import annotations

from typing import Protocol

import anyio

__all__ = ["Clock", "LoopClock"]


class Clock(Protocol):
    """A monotonic clock that can be waited on."""

    def now(self) -> float:
        """Seconds, monotonic."""

    async def sleep_until(self, moment: float) -> None:
        """Return once ``now() >= moment``."""


class LoopClock:
    """The clock of the running event loop."""

    def now(self) -> float:
        """See `Clock`."""
        return anyio.current_time()

    async def sleep_until(self, moment: float) -> None:
        """See `Clock`."""
        await anyio.sleep_until(moment)
