"""A reply as it is written: its chunks cross from the engine's thread to the reader's event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

from specstream.errors import EngineError, SpecstreamError
from specstream.metrics import Report
from specstream.types import Chunk, Preview, ToolCall, ToolCallDelta

if TYPE_CHECKING:
    from specstream.engine.core.request import Delivery, Request
    from specstream.engine.core.worker import EngineWorker

__all__ = ["Generation", "Previewed", "ThreadBridge"]

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


_Item: TypeAlias = Chunk | Preview | SpecstreamError


class Generation:
    """One reply under way: an async iterator of `Chunk`, in order, ending after the last one.

    The chunk that carries a ``finish_reason`` is the last. If the engine fails on this request, the
    iteration raises the typed error after every chunk that came before it. Cancelling an iteration
    that waits loses no chunk; a second task that waits, and one of another event loop, gets
    `EngineError`. A consumer that doesn't read parks this request only: the engine runs no further
    than ``max_unread_chunks`` ahead of it.

    Attributes:
        request: What the engine's thread works on.
    """

    def __init__(
        self, worker: EngineWorker, bridge: ThreadBridge, limit: int, make: Callable[[Delivery], Request]
    ) -> None:
        from specstream.engine.core.request import Delivery

        self._worker = worker
        self._bridge = bridge
        self._arrived: deque[_Item] = deque()
        self._news = asyncio.Event()
        self._ended = self._awaited = False
        self._delivery = Delivery(self._put, limit)
        self.request = make(self._delivery)
        self._read: list[str] = []
        self._calls: list[ToolCallDelta] = []

    def _put(self, item: _Item) -> None:
        """Called on the engine thread."""
        if not self._bridge.put(self._arrive, item):
            self._delivery.cancelled = True  # the loop is closed: nobody will ever read this

    def _arrive(self, item: _Item) -> None:
        self._arrived.append(item)
        self._news.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        while isinstance(item := await self._following(), Preview):
            pass
        return item

    def previewed(self) -> Previewed:
        """Return an iterator over the chunks that gives a `Preview` of a round's draft before its chunk.

        Iterate over the result instead of this object. Nothing is previewed until this is called; text,
        report and chunks stay the same. On a GPU each round then waits until its draft is on the CPU.
        """
        self._delivery.previews = True
        return Previewed(self)

    async def _following(self) -> Chunk | Preview:
        while not self._arrived:
            if self._ended:
                raise StopAsyncIteration
            if self._awaited:
                raise EngineError(
                    "another task is reading this reply; read it in one task and pass its chunks on"
                )
            if asyncio.get_running_loop() is not self._bridge.loop:
                raise EngineError(
                    "this reply belongs to the event loop of its engine; read it there and pass its "
                    "chunks on"
                )
            self._news.clear()
            self._awaited = True
            try:
                await self._news.wait()
            finally:
                self._awaited = False
        item = self._arrived.popleft()
        if isinstance(item, Preview):
            return item
        delivery = self._delivery
        delivery.read += 1
        # Checked after the increment, so no wake-up is lost: either the engine sees the new count, or
        # this side sees that the engine has parked the request.
        if delivery.sent - delivery.read >= delivery.limit - 1:
            self._worker.wake()
        if isinstance(item, Chunk):
            self._ended = item.finish_reason is not None
            self._read.append(item.text)
            self._calls += item.tool_calls
            return item
        self._ended = True
        raise item

    def cancel(self) -> None:
        """Stop after the round under way. The iteration ends with a chunk marked ``cancelled``.

        Returns at once; idempotent; does nothing once the reply is complete.
        """
        if not self._delivery.cancelled:
            self._delivery.cancelled = True
            self._worker.wake()

    def needed_by(self, moment: float, heard: bool = False) -> None:
        """Say when the listener of this reply will have nothing left to hear; may be called again.

        ``moment`` is on the event loop's clock; ``heard``: whether there was any sound. While another
        reply is needed soon, the engine decodes none whose listener has much to hear. A reply without a
        listener takes part in every pass.
        """
        self._delivery.heard = heard
        self._delivery.needed_by = moment

    @property
    def text(self) -> str:
        """The reply's text that the engine has written, read or not; its reasoning is in the report."""
        return self.request.text

    @property
    def text_read(self) -> str:
        """The text of the chunks that the iteration has returned."""
        return "".join(self._read)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls that have ended in the chunks that the iteration has returned."""
        return ToolCall.collect(self._calls)

    @property
    def error(self) -> SpecstreamError | None:
        """What ended the request, if it failed."""
        return self.request.error

    @property
    def report(self) -> Report:
        """How the request went so far; final once its ``finish_reason`` isn't None.

        May be read at any time, after the block as well. A reply that failed never gets a reason: its
        error is raised by the iteration.
        """
        return self.request.report()


class Previewed:
    """See `Generation.previewed`. Cancelling an iteration that waits loses no chunk and no preview."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk | Preview:
        return await self._generation._following()

    def cancel(self) -> None:
        """See `Generation.cancel`."""
        self._generation.cancel()
