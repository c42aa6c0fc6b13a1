"""The bounded, cancellable hand-over between two stages."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import anyio

from specstream.types import Cancel, Control

__all__ = ["Inlet", "Link"]

T = TypeVar("T")
R = TypeVar("R")


class Link(Generic[T]):
    """A bounded first-in-first-out hand-over with one sender and one receiver.

    ``send`` waits while ``capacity`` items lie unread. After ``cancel`` the unread items are gone,
    the receiver's next item is the Cancel, then the stream ends; later sends are dropped.
    """

    def __init__(self, capacity: int = 64) -> None:
        if capacity < 1:
            raise ValueError("a link needs room for at least one item")
        self._capacity = capacity
        self._items: deque[T | Control] = deque()
        self._closed = False
        self._finished = False
        self._cancelled = False
        self._awaited = False
        self.taken = 0  # items that the receiver has read
        self._changed = anyio.Event()
        self._interruptible: set[anyio.CancelScope] = set()
        self.inlet: Inlet[T] = Inlet(self)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def send(self, item: T | Control) -> None:
        """Hand over one item. Cancelling the call hands over nothing."""
        while len(self._items) >= self._capacity and not (self._closed or self.cancelled):
            await self._changed.wait()
        if self._closed or self.cancelled:
            return
        self._items.append(item)
        self._notify()

    def close(self) -> None:
        """No more items will be sent; the receiver ends after what is already here. Idempotent."""
        self._closed = True
        self._notify()

    def cancel(self, cancel: Cancel) -> None:
        """Drop what is unread and deliver ``cancel`` next. Only the first call counts."""
        if self.cancelled:
            return
        self._items.clear()
        self._items.append(cancel)
        self._closed = self._cancelled = True
        for scope in self._interruptible:
            scope.cancel()
        self._notify()

    def abandon(self) -> None:
        """The receiver reads no more: drop what is unread and what is still sent. Idempotent."""
        self._items.clear()
        self._closed = True
        self._notify()

    @property
    def cancelled(self) -> bool:
        """Whether ``cancel`` was called."""
        return self._cancelled

    @property
    def finished(self) -> bool:
        """Whether the receiver has read the end of the stream, or its Cancel."""
        return self._finished

    @property
    def cancel_pending(self) -> bool:
        """Whether ``cancel`` was called before the receiver finished, and it doesn't know yet."""
        return self._cancelled and not self._finished

    @property
    def starved(self) -> bool:
        """Whether the receiver waits for an item that nobody has sent yet."""
        return self._awaited

    async def _receive(self) -> T | Control:
        while not self._items:
            if self._closed:
                self._finished = True
                raise StopAsyncIteration
            self._awaited = True
            try:
                await self._changed.wait()
            finally:
                self._awaited = False
        item = self._items.popleft()
        self.taken += 1
        self._finished = self._cancelled
        self._notify()
        return item

    async def _unless_cancelled(self, work: Callable[[], Awaitable[R]]) -> R | None:
        if self._cancelled:
            return None
        with anyio.CancelScope() as scope:
            self._interruptible.add(scope)
            try:
                return await work()
            finally:
                self._interruptible.discard(scope)
        return None


class Inlet(Generic[T]):
    """The receiving end, as a stage sees it: an async iterator of items and controls.

    It ends when the sender has closed and everything was read. A stage that makes a lot from one
    item looks at ``cancelled`` in between, or waits through ``unless_cancelled``.
    """

    def __init__(self, link: Link[T]) -> None:
        self._link = link

    def __aiter__(self) -> Inlet[T]:
        return self

    async def __anext__(self) -> T | Control:
        return await self._link._receive()

    @property
    def cancelled(self) -> bool:
        """Whether what is being made now is no longer wanted; the Cancel is the next item."""
        return self._link.cancelled

    async def unless_cancelled(self, work: Callable[[], Awaitable[R]]) -> R | None:
        """Run ``work()``, or stop it and return None as soon as the turn is cancelled."""
        return await self._link._unless_cancelled(work)
