"""Hand items from the engine's thread to callbacks on an event loop, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["ThreadBridge"]

T = TypeVar("T")


class ThreadBridge:
    """Passes items from one thread to callbacks on an event loop; one wake-up delivers all queued items.

    The queue itself has no bound. The sender keeps it short: the engine runs at most
    ``max_unread_chunks`` ahead of each consumer.

    Args:
        loop: The event loop that runs the callbacks. They must not raise.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._items: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._scheduled = False

    def put(self, callback: Callable[[T], None], item: T) -> bool:
        """Have ``callback(item)`` run on the loop; return at once. Only one thread may call this.

        Returns False if the loop is closed, so that nothing runs on it any more.
        """
        self._items.append((callback, item))
        if not self._scheduled:
            self._scheduled = True
            try:
                self.loop.call_soon_threadsafe(self.deliver)
            except RuntimeError:
                return False
        return not self.loop.is_closed()

    def deliver(self) -> None:
        """Run the callbacks of all queued items, if any. To be called on the loop's thread."""
        # Cleared first: an item put from here on is seen below or schedules another delivery.
        self._scheduled = False
        while self._items:
            callback, item = self._items.popleft()
            callback(item)
