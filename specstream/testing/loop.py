"""An event loop in virtual time: sleeping takes no time, and every run gives the same times."""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple

import anyio
import anyio.to_thread

__all__ = ["VirtualTimeLoop", "run_virtual"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_KERNEL_S = 0.001  # real time that a message may take between two sockets of this process


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that moves the loop's clock to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.in_threads = 0  # calls of the loop's executor that are under way
        self.limiter: anyio.CapacityLimiter | None = None  # of anyio's threads

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = []
        if len(self.get_map()) > 1:  # more than the pipe by which threads wake the loop
            ready = super().select(0 if timeout == 0 else _KERNEL_S)
        if ready or timeout == 0:
            return ready
        if self.in_threads or (self.limiter is not None and self.limiter.borrowed_tokens):
            return super().select(None)  # a thread wakes the loop when it is done
        if timeout is None:
            if ready := super().select(0):
                return ready
            raise RuntimeError("every task waits and no timer runs: deadlock")
        self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock starts at 0 and jumps to the next timer as soon as every task waits.

    While a thread of its executor works, the clock stands still. The loop doesn't see other threads and
    processes: their work (an engine's own thread, a server elsewhere) seems to take no time, or an
    arbitrary time. Use scripted parts instead.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds of virtual time."""
        return self._jumping.now

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """As in asyncio, but a timer at infinity (`anyio.sleep_forever`) isn't scheduled."""
        if when == math.inf:
            return asyncio.TimerHandle(when, callback, args, self, context)
        return super().call_at(when, callback, *args, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """As in asyncio; the clock stands still until the call is done."""
        future: asyncio.Future[T] = super().run_in_executor(executor, func, *args)
        self._jumping.in_threads += 1
        future.add_done_callback(self._thread_done)
        return future

    async def shutdown_default_executor(self, *args: Any) -> None:
        """As in asyncio, which waits in a further thread; the clock stands still meanwhile."""
        self._jumping.in_threads += 1
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self._jumping.in_threads -= 1

    def _thread_done(self, future: asyncio.Future[Any]) -> None:
        self._jumping.in_threads -= 1

    def watch(self, limiter: anyio.CapacityLimiter) -> None:
        """Stop the clock also while threads hold tokens of ``limiter``."""
        self._jumping.limiter = limiter


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time, on a loop of its own, and return its result.

    Raises:
        RuntimeError: every task waits for something that never comes; or a loop runs in this thread.
    """

    async def run(loop: VirtualTimeLoop) -> T:
        loop.watch(anyio.to_thread.current_default_thread_limiter())
        return await work

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualTimeLoop)
        return runner.run(run(loop))
