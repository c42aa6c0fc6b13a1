"""An event loop in virtual time: sleeping takes no time, and every run gives the same times."""

from __future__ import annotations

import asyncio
import functools
import math
import selectors
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple

import anyio
import anyio.to_thread

__all__ = ["VirtualTimeLoop", "run_virtual"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_KERNEL_S = 0.001  # real time that a message may take between two sockets of this process
_SHORT_S = 0.002  # calls in threads that are shorter aren't worth a word
_END_S = 10.0  # real seconds in which other threads may let the tasks end that a deadlock left
_POOLS = ("asyncio_", "AnyIO ", "ThreadPoolExecutor")  # the loop sees the work of these threads


class _Call:
    """A call in a thread, which sets the real times at which it began and ended."""

    began: float | None = None
    ended: float | None = None


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that moves the loop's clock to the next timer instead of waiting for it.

    Attributes:
        now: The virtual time.
        calls: Calls of the loop's executors that are under way.
        waiting: Waits for a thread that does no work.
        limiter: Of anyio's threads.
        charging: Whether the clock runs while threads work.
        ending: Whether the loop is being closed: who waits for a thread of their own is waited for.
        uncounted: Real seconds that threads worked while the clock stood still.
    """

    def __init__(self, *, charging: bool) -> None:
        super().__init__()
        self.now = self.uncounted = 0.0
        self.calls: set[_Call] = set()
        self.waiting = 0
        self.limiter: anyio.CapacityLimiter | None = None
        self.charging, self.ending = charging, False
        self._was_lent = False
        self._mark: float | None = None  # real time until which work is accounted; None: no work
        self._lent_s = 0.0  # for how long anyio's threads have worked without a break

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        due = None if timeout is None else self.now + timeout
        self.account()
        ready: list[tuple[selectors.SelectorKey, int]] = []
        if len(self.get_map()) > 1:  # more than the pipe by which threads wake the loop
            ready = super().select(0 if timeout == 0 else _KERNEL_S)
        if not ready and timeout != 0:
            ready = self._wait(due)
        self.account()
        return ready

    def _wait(self, due: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for a thread, which wakes the loop when it is done, or jump to the time ``due``."""
        if self.waiting or self._working:
            if not self.charging or due is None:
                return super().select(None)
            ready = super().select(max(0.0, due - self.now))
            self.account()
            if ready:
                return ready
        elif due is None:
            if ready := super().select(_END_S if self.ending else 0):
                return ready
            raise RuntimeError(f"every task waits and no timer runs: deadlock{_hint()}")
        self.now = max(self.now, due)
        return []

    @property
    def _working(self) -> bool:
        return bool(self.calls) or self._lent

    @property
    def _lent(self) -> bool:
        """Whether one of anyio's threads works."""
        return self.limiter is not None and self.limiter.borrowed_tokens > 0

    def account(self) -> None:
        """Count the real time since the last call, as far as threads worked."""
        real = time.perf_counter()
        if self._mark is not None:
            ended = [call.ended for call in self.calls if call.ended is not None]
            done = len(ended) == len(self.calls) and not self._lent
            until = max(ended, default=self._mark) if done else real
            worked = max(0.0, until - self._mark)
            self.now += worked if self.charging else 0.0
            self._lent_s += worked if self._was_lent else 0.0
        self._mark, self._was_lent = real if self._working else None, self._lent
        if not self._was_lent:
            self._miss(self._lent_s)
            self._lent_s = 0.0

    def over(self, call: _Call) -> None:
        """Take note that a call is done."""
        self.account()
        self.calls.discard(call)
        if call.began is not None:
            self._miss((call.ended or time.perf_counter()) - call.began)

    def _miss(self, seconds: float) -> None:
        self.uncounted += 0.0 if self.charging or seconds < _SHORT_S else seconds


def _hint() -> str:
    """What may be waited for: work of threads that the loop doesn't see, such as an engine's."""
    names = [thread.name for thread in threading.enumerate()]
    main = threading.main_thread().name
    unseen = [name for name in names if name != main and not name.startswith(_POOLS)]
    if not unseen:
        return ""
    return (
        f" (virtual time does not wait for threads of their own, and there are: {', '.join(unseen)}; "
        "use scripted parts, such as specstream.testing.ScriptedEngine, or real time)"
    )


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock starts at 0 and jumps to the next timer as soon as every task waits.

    While a thread of its executor or of anyio works, the clock stands still; with ``charge_threads`` it
    runs at the pace of real time, so that a call takes as long as it really takes. The loop doesn't see
    other threads and processes: their work (an engine's own thread, a server elsewhere) seems to take no
    time, or an arbitrary time. Use scripted parts instead.
    """

    def __init__(self, *, charge_threads: bool = False) -> None:
        self._jumping = _JumpingSelector(charging=charge_threads)
        super().__init__(self._jumping)

    @property
    def uncounted(self) -> float:
        """Real seconds that threads worked while the clock stood still, without calls below 2 ms."""
        self._jumping.account()
        return self._jumping.uncounted

    def time(self) -> float:
        """Seconds of virtual time."""
        return self._jumping.now

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As in asyncio, but a timer at infinity (`anyio.sleep_forever`) isn't scheduled."""
        if when == math.inf:
            return asyncio.TimerHandle(when, callback, args, self, context)
        return super().call_at(when, callback, *args, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """As in asyncio; what happens to the clock meanwhile is said above."""
        call, jumping = _Call(), self._jumping

        def timed(*args: *Ts) -> T:
            call.began = time.perf_counter()
            try:
                return func(*args)
            finally:
                call.ended = time.perf_counter()

        # What goes to another process must be picklable; its end is then seen with its result.
        in_thread = executor is None or isinstance(executor, ThreadPoolExecutor)
        call.began = None if in_thread else time.perf_counter()
        jumping.account()
        jumping.calls.add(call)
        jumping.account()
        future: asyncio.Future[T] = super().run_in_executor(
            executor, timed if in_thread else func, *args
        )

        future.add_done_callback(lambda future: jumping.over(call))
        return future

    async def shutdown_default_executor(self, *args: Any) -> None:
        """As in asyncio, which waits in a further thread; the clock stands still meanwhile."""
        self._jumping.waiting += 1
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self._jumping.waiting -= 1

    def end(self) -> None:
        """The work is over: from now on tasks may wait for threads that the loop doesn't see."""
        self._jumping.ending = True

    def watch(self, limiter: anyio.CapacityLimiter) -> None:
        """Stop the clock also while threads hold tokens of ``limiter``."""
        self._jumping.limiter = limiter


def run_virtual(
    work: Coroutine[Any, Any, T],
    *,
    charge_threads: bool = False,
    tell_uncounted: Callable[[float], object] = lambda seconds: None,
) -> T:
    """Run a coroutine to its end in virtual time, on a loop of its own, and return its result.

    Args:
        work: The coroutine.
        charge_threads: Whether work in threads takes the time that it really takes, which differs from
            run to run; by default it takes none.
        tell_uncounted: Called at the end, also of a run that fails, with the real seconds in which
            threads worked while the clock stood still; what took less than 2 ms is left out.

    Raises:
        RuntimeError: every task waits for something that never comes; or a loop runs in this thread.
    """
    __tracebackhide__ = True

    async def run(loop: VirtualTimeLoop) -> T:
        __tracebackhide__ = True
        loop.watch(anyio.to_thread.current_default_thread_limiter())
        return await work

    make = functools.partial(VirtualTimeLoop, charge_threads=charge_threads)
    with asyncio.Runner(loop_factory=make) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualTimeLoop)
        try:
            return runner.run(run(loop))
        finally:
            loop.end()
            tell_uncounted(loop.uncounted)
