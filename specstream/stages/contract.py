"""What a stage is: links between stages, controls in order, and the events made of its output.

A stage turns one stream into another. Controls (`Flush`, `Revoke`, `Cancel`) travel in the same
stream as the items, in order; every stage passes them on once it has acted on them.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

import anyio

from specstream.errors import AdapterFailed, SpecstreamError
from specstream.signals import Signal, finished
from specstream.stages.deadline import Deadlines
from specstream.types import Cancel, Chunk, Control, Phrase, Revoke, Span, Speech

__all__ = ["Event", "Inlet", "Link", "Stage", "StageFailed", "WrittenText", "as_failure", "close_part"]

_CLOSE_S = 10.0  # seconds that an adapter or a sink may take to close

T = TypeVar("T")
R = TypeVar("R")


class Inlet(Generic[T]):
    """A link's receiving end, as a stage sees it: an async iterator of items and controls.

    It ends when the sender has closed and everything was read. A stage that makes a lot from one
    item checks ``cancelled`` in between, or waits through ``unless_cancelled``.

    Attributes:
        cancelled: Whether what is being made now is no longer wanted; the Cancel is the next item.
        drafted: Whether items may be made of text that is drafted only, and be revoked.
        deadlines: For the head of a pipeline: until when the next phrase is wanted.
        finished: Whether the receiver has read the end of the stream, or its Cancel.
        starved: Whether it waits for an item that nobody has sent yet.
        taken: How many items it has read.
    """

    def __init__(self, *, drafted: bool) -> None:
        self.cancelled = self.finished = self.starved = False
        self.drafted = drafted
        self.taken = 0
        self.deadlines: Deadlines | None = None
        self.unread: deque[T | Control] = deque()
        self._closed = self._woken = False
        self._changed = Signal()
        self.interruptible: dict[anyio.CancelScope, int] = {}  # the end of each work's text
        self._revoked: deque[int] = deque()  # offsets of revokes of drafted text that lie unread
        self._read = 0  # characters of the text that the receiver was given
        self._made_of: int | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T | Control:
        while not self.unread:
            await self._wait()
        return self._take()

    async def within(self, seconds: float | None) -> T | Control | None:
        """The next item, or None if none has come in so many seconds, or before `wake` is called.

        Cancelling the call takes nothing.

        Raises:
            StopAsyncIteration: the stream has ended.
        """
        self._woken = False
        timer = seconds is not None and asyncio.get_running_loop().call_later(seconds, self.wake)
        try:
            while not self.unread:
                if self._woken:
                    return None
                await self._wait()
        finally:
            if timer:
                timer.cancel()
        return self._take()

    def wake(self) -> None:
        """End the receiver's wait in `within`, if it waits."""
        self._woken = True
        self._changed.notify()

    async def _wait(self) -> None:
        if self._closed:
            self.finished = True
            raise StopAsyncIteration
        self.starved = True
        try:
            await self._changed.wait()
        finally:
            self.starved = False

    def _take(self) -> T | Control:
        item = self.unread.popleft()
        self.taken += 1
        if isinstance(item, (Phrase, Speech)):
            self._read = max(self._read, item.chars.end)
        elif isinstance(item, Revoke):
            self._read = min(self._read, item.from_char)
            if item.drafted:
                self._revoked.popleft()
        self.finished = self.cancelled
        self._changed.notify()
        return item

    def made_of(self, end: int | None) -> None:
        """Declare that the next output is made of the text up to ``end``; None: of all text read so far.

        For a stage that reads ahead of what it gives.
        """
        self._made_of = end

    def unwanted(self, end: int) -> bool:
        """Whether work on text up to ``end`` is wasted: cancelled, or with a revoke that lies unread."""
        return self.cancelled or any(char < end for char in self._revoked)

    async def unless_cancelled(self, work: Callable[[], Awaitable[R]], end: int = 0) -> R | None:
        """Run ``work()``, or stop it and return None as soon as the turn is cancelled.

        The same happens as soon as drafted text before ``end`` is revoked.
        """
        if self.unwanted(end):
            return None
        with anyio.CancelScope() as scope:
            self.interruptible[scope] = end
            try:
                return await work()
            finally:
                del self.interruptible[scope]
        return None


class Link(Inlet[T]):
    """A bounded first-in-first-out queue with one sender and one receiver.

    ``send`` waits while ``capacity`` items lie unread. After ``cancel`` the unread items are gone,
    the receiver's next item is the Cancel, then the stream ends; later sends are dropped. A revoke of
    drafted text keeps its place in the queue, but work on that text is stopped when it is sent.

    Args:
        capacity: Maximum unread items.
        drafted: Whether items may be made of text that is only drafted, not verified.
    """

    def __init__(self, capacity: int = 64, *, drafted: bool = False) -> None:
        if capacity < 1:
            raise ValueError("a link needs room for at least one item")
        super().__init__(drafted=drafted)
        self._capacity = capacity

    @property
    def reach(self) -> int:
        """End of the text that the receiver has used for its current output."""
        return self._read if self._made_of is None else self._made_of

    async def send(self, item: T | Control) -> None:
        """Hand over one item. Cancelling the call hands over nothing."""
        if isinstance(item, Revoke) and item.drafted and not self._closed:
            self._revoked.append(item.from_char)
            for scope, end in self.interruptible.items():
                if end > item.from_char:
                    scope.cancel()
        while len(self.unread) >= self._capacity and not self._closed:
            await self._changed.wait()
        if not self._closed:
            self.unread.append(item)
            self._changed.notify()

    def close(self) -> None:
        """No more items will be sent; the receiver ends after what is already here. Idempotent."""
        self._closed = True
        self._changed.notify()

    def cancel(self, cancel: Cancel) -> None:
        """Drop what is unread and deliver ``cancel`` next. Only the first call counts."""
        if self.cancelled:
            return
        self.cancelled = True
        self.unread.clear()
        self._revoked.clear()
        self.unread.append(cancel)
        for scope in self.interruptible:
            scope.cancel()
        self.close()

    def abandon(self) -> None:
        """The receiver reads no more: drop what is unread and what is still sent. Idempotent."""
        self.unread.clear()
        self.close()

    @property
    def cancel_pending(self) -> bool:
        """Whether ``cancel`` was called, and the receiver has not read the Cancel or the end yet."""
        return self.cancelled and not self.finished


In = TypeVar("In")
Out_co = TypeVar("Out_co", covariant=True)


class Stage(Protocol[In, Out_co]):
    """Turns a stream of ``In`` into a stream of ``Out``.

    ``run`` is called once a turn. It must yield every control that it receives, after acting on it:
    on ``Revoke`` it drops what it holds of text past that offset, on ``Flush`` it first yields what it
    holds unfinished, on ``Cancel`` it yields only what brings a consumer to rest. It ends when ``items``
    ends. Closing the generator early releases whatever the turn held.

    A stage with a true attribute ``takes_drafts`` may also be given items made of drafted text. What
    it makes of them is held until their text is verified; if it is revoked (``Revoke.drafted``), the
    stage must go on as if it had never been given them.
    """

    @property
    def name(self) -> str:
        """The ``source`` of the stage's events."""

    def run(self, items: Inlet[In]) -> AsyncGenerator[Out_co | Control, None]:
        """Run one turn."""


@dataclass(frozen=True, slots=True)
class StageFailed:
    """A stage raised or was stopped. Its branch ends here; the text and the other branches go on."""

    error: SpecstreamError


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the turn's ordered, numbered log.

    ``source`` is the stage that made ``item`` (``"engine"`` for the chunks themselves). ``t_ms``
    counts from the start of the run.
    """

    seq: int
    t_ms: float
    source: str
    item: object


class WrittenText:
    """Makes chunks of no tokens of the text that another model's stream gives."""

    def __init__(self) -> None:
        self.chars = 0

    def chunk(self, item: object) -> object:
        """The chunk of an item that is text; any other item itself."""
        if not isinstance(item, str):
            return item
        start, self.chars = self.chars, self.chars + len(item)
        return Chunk(item, (), Span(0, 0), Span(start, self.chars))


def as_failure(who: str, error: BaseException) -> SpecstreamError:
    """Return the typed error for a part that broke; a foreign exception is kept as the cause."""
    if isinstance(error, SpecstreamError):
        return error
    failure = AdapterFailed(f"{who} broke: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


async def close_part(who: str, part: object) -> None:
    """Close an adapter or a sink, if there is anything to close. A cancel is raised after that.

    Raises:
        SpecstreamError: it can't be closed, or takes more than ten seconds; then nobody waits for it.
    """

    async def close(aclose: Callable[[], Any]) -> None:
        if inspect.isawaitable(made := aclose()):
            await made

    if (aclose := getattr(part, "aclose", None)) is None:
        return
    task = asyncio.create_task(close(aclose))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may be unheard of
    await finished(asyncio.wait({task}, timeout=_CLOSE_S))
    if not task.done():
        task.cancel()
        raise AdapterFailed(f"{who} didn't close within {_CLOSE_S:g} s")
    if task.cancelled():
        raise AdapterFailed(f"{who} was cancelled while it closed")
    if (error := task.exception()) is not None:
        raise as_failure(who, error) from error
