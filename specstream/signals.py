"""Waking of tasks that wait for a change."""

from __future__ import annotations

import anyio

__all__ = ["Signal"]


class Signal:
    """Wakes the tasks that wait for a change of something; each looks for itself what has changed.

    A change before `wait` is called wakes nobody: test what you wait for, then wait, in a loop.
    """

    def __init__(self) -> None:
        self._event = anyio.Event()

    def notify(self) -> None:
        """Wake all tasks that wait now."""
        self._event.set()
        self._event = anyio.Event()

    async def wait(self) -> None:
        """Wait for the next `notify`. Cancelling the call changes nothing."""
        await self._event.wait()
