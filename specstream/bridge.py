"""How the engine's thread reaches an event loop: in order, and cheaply."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["ThreadBridge"]

T = TypeVar("T")


class ThreadBridge(Generic[T]):
    """Passes items from one thread to callbacks on an event loop.

    `asyncio.loop.call_soon_threadsafe` writes to a socket at every call and makes a handle for each.
    Between two passes of a model, with nothing in the CPU's caches, that is the dearest thing that the
    engine does; a bell of the kernel's own (``eventfd``) is half of it, and what arrives before the
    loop has answered one needs no second. Where there is no such bell (another kernel, or a loop that
    watches no file descriptors), the loop's own way is used.

    The queue is bounded by whoever puts: the engine never goes further than a request's limit of
    unread chunks ahead.

    Args:
        loop: On which callbacks run; make and close the handover there. They must not raise.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._items: deque[tuple[Callable[[T], None], T]] = deque()
        self._rung = False
        self._bell = _watched(loop, self._answer)

    def put(self, callback: Callable[[T], None], item: T) -> None:
        """Have ``callback(item)`` run on the loop. For one thread only; returns at once.

        Raises:
            RuntimeError: the loop is closed.
        """
        if self.loop.is_closed():
            raise RuntimeError("the event loop is closed")
        self._items.append((callback, item))
        if not self._rung:
            self._rung = True
            if self._bell is None:
                self.loop.call_soon_threadsafe(self._deliver)
            else:
                os.eventfd_write(self._bell, 1)

    def _answer(self) -> None:
        assert self._bell is not None
        os.eventfd_read(self._bell)
        self._deliver()

    def _deliver(self) -> None:
        # First: whatever is put from here on is either seen below or rings again.
        self._rung = False
        while self._items:
            callback, item = self._items.popleft()
            callback(item)

    def close(self) -> None:
        """Deliver what is left, and let go. Nobody may put any more. Idempotent."""
        if self._bell is not None:
            bell, self._bell = self._bell, None
            self.loop.remove_reader(bell)
            os.close(bell)
        self._deliver()


def _watched(loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> int | None:
    """A bell that the loop answers with ``ring()``; None where there is none to be had."""
    try:
        bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    except (AttributeError, OSError):  # another kernel, or no file descriptor is left
        return None
    try:
        loop.add_reader(bell, ring)
    except (NotImplementedError, OSError):
        # The base class's own `add_reader`: a loop that watches no descriptors. Or too many of them.
        os.close(bell)
        return None
    return bell
