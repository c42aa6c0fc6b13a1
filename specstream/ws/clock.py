"""The clock that pacing, rate limits and timeouts go by; tests bring their own."""

from __future__ import annotations

import time

import anyio

from specstream.pipeline.clock import Clock

__all__ = ["Clock", "SystemClock"]


class SystemClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """See `Clock`."""
        return time.monotonic()

    async def sleep_until(self, moment: float) -> None:
        """See `Clock`."""
        await anyio.sleep(max(0.0, moment - time.monotonic()))
