"""What waits and what tells the time: a signal between tasks, and the clock that play-out goes by."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

import anyio

__all__ = ["Clock", "LoopClock", "Signal", "event_loops", "finished"]

T = TypeVar("T")


def event_loops() -> tuple[str, ...]:
    """The event loops at hand; commands run on the last. uvloop mostly takes less CPU time."""
    return ("asyncio", "uvloop") if importlib.util.find_spec("uvloop") else ("asyncio",)


class Signal:
    """Wakes the tasks that wait for a change of something; each looks for itself what has changed.

    A change before `wait` is called wakes nobody: test what you wait for, then wait, in a loop.
    """

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def notify(self) -> None:
        """Wake all tasks that wait now."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def wait(self) -> None:
        """Wait for the next `notify`. Cancelling the call changes nothing."""
        self._loop = _running(self._loop)
        future = self._loop.create_future()
        self._waiting.append(future)
        try:
            await future
        except BaseException:
            if future in self._waiting:
                self._waiting.remove(future)
            raise


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """Do ``work`` to its end, in a task of its own, even if the caller is cancelled meanwhile.

    A cancel by a scope of anyio or by asyncio, whose cancels no scope holds off, is raised afterwards.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # else asyncio reports that nobody asked for it
        raise cancelled
    return task.result()


def _running(latest: asyncio.AbstractEventLoop | None) -> asyncio.AbstractEventLoop:
    """The running event loop: ``latest`` if that runs, since asking for it takes longer."""
    return latest if latest is not None and latest.is_running() else asyncio.get_running_loop()


class Clock(Protocol):
    """A monotonic clock that can be waited on."""

    def now(self) -> float:
        """Seconds, monotonic."""

    async def sleep_until(self, moment: float) -> None:
        """Return once ``now() >= moment``."""


class LoopClock:
    """The clock of the running event loop, of one at a time."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def now(self) -> float:
        """See `Clock`. Works in the loop's callbacks, too, where `anyio.current_time` raises."""
        self._loop = _running(self._loop)
        return self._loop.time()

    async def sleep_until(self, moment: float) -> None:
        """See `Clock`."""
        await anyio.sleep_until(moment)
