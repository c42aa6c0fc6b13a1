"""Waking of tasks that wait for a change."""

from __future__ import annotations

import asyncio

__all__ = ["Signal"]


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
