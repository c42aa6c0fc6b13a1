"""The engine's thread, as the event loop that started it sees it. Loads no torch until it is started."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from specstream.checks import for_future
from specstream.config import EngineConfig
from specstream.engine.generation import ThreadBridge
from specstream.errors import ConfigError, EngineClosed, EngineError, EngineFailed, SpecstreamError
from specstream.signals import finished

if TYPE_CHECKING:
    from specstream.engine.core.step import EngineCore
    from specstream.engine.core.worker import EngineWorker

__all__ = ["EngineHost"]

T = TypeVar("T")

_loading = threading.Lock()
"""Held while an engine is built: to load a model, transformers changes torch's state for all threads."""


def _unlock() -> None:
    global _loading
    _loading = threading.Lock()


if hasattr(os, "register_at_fork"):  # in a child, the thread that held the lock is gone
    os.register_at_fork(after_in_child=_unlock)


class EngineHost:
    """Starts and stops one engine's thread, and says where it may be used: on one event loop.

    Attributes:
        worker: The thread; None before `start`.
    """

    def __init__(self) -> None:
        self.worker: EngineWorker | None = None
        self._process = 0  # the thread belongs to the process that started it
        self._closed = anyio.Event()
        self._bridge: ThreadBridge | None = None

    async def start(self, config: EngineConfig) -> None:
        """Start the thread and wait until it has loaded the models. Cancelling stops it again.

        Raises:
            ModelError: any of its kinds.
            ConfigError: it was started before.
        """
        loop = asyncio.get_running_loop()
        module = await asyncio.to_thread(_imported)  # takes seconds
        if self.worker is not None:
            raise ConfigError("this engine was entered before; make a new one")
        bridge = self._bridge = ThreadBridge(loop)
        self._process = os.getpid()
        ready: asyncio.Future[None] = loop.create_future()

        def settle(error: SpecstreamError | None) -> None:
            if not ready.done():
                ready.set_exception(error) if error is not None else ready.set_result(None)

        def build() -> Any:
            from specstream.engine.build import build_engine

            while not _loading.acquire(timeout=0.1):
                worker.check()
            try:
                return build_engine(config, worker.check)
            finally:
                _loading.release()

        worker = self.worker = module.EngineWorker(
            build,
            lambda error: bridge.put(settle, error),
            lambda: bridge.put(lambda _: self._closed.set(), None),
        )
        worker.start()
        try:
            with _seldom_collected():
                await ready
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End every request as cancelled, after the round under way, and wait for the thread's end.

        Cancelling does not end the wait; it is raised afterwards.
        """
        worker = self.worker
        if worker is None:
            return  # it never began
        if os.getpid() != self._process:
            return  # in a forked process: the thread is the parent's
        worker.close()

        async def end() -> None:
            if self._bridge is not None and self._bridge.loop is asyncio.get_running_loop():
                await self._closed.wait()  # set on that loop only
            # A thread that still runs can abort the interpreter's exit.
            try:
                await asyncio.to_thread(worker.join)
            except RuntimeError:  # the main thread has ended: Python starts no more threads
                worker.join()

        await finished(end())

    async def wait_closed(self) -> None:
        """Wait until the thread has ended. Cancelling only gives up the wait.

        Raises:
            EngineFailed: nobody has stopped it.
            EngineClosed, EngineError: see `running`.
        """
        if self.failure is None:
            self.running()
            await self._closed.wait()
        if self.failure is not None:
            raise EngineFailed(f"the engine has ended: {self.failure!r}") from self.failure

    @property
    def failure(self) -> BaseException | None:
        """What ended the thread before it was stopped; None if nothing did."""
        return None if self.worker is None else self.worker.failure

    def running(self) -> tuple[EngineWorker, ThreadBridge]:
        """Return the thread and the bridge to the event loop.

        Raises:
            EngineClosed: it is not running, was started in the parent of this forked process, or its
                event loop is closed.
            EngineError: another event loop started it.
        """
        worker, bridge = self.worker, self._bridge
        if (failure := self.failure) is not None:
            raise EngineClosed(f"the engine has ended: {failure!r}; load another one") from failure
        if worker is None or bridge is None or self._closed.is_set():
            raise EngineClosed("the engine is not running: use it inside its `async with` block")
        if os.getpid() != self._process:
            raise EngineClosed(
                "this process was forked from the one that runs the engine, and an engine doesn't "
                "survive that: load one here, or start processes by 'spawn'"
            )
        if bridge.loop.is_closed():
            worker.close()
            raise EngineClosed(
                "the event loop that entered this engine is closed, and the engine with it: load "
                "another, and leave its `async with` block before its loop ends"
            )
        if asyncio.get_running_loop() is not bridge.loop:
            raise EngineError("this engine belongs to the event loop that entered it; ask it there")
        return worker, bridge

    async def ask(self, ask: Callable[[EngineCore], T]) -> T:
        """Run ``ask`` on the thread, between two steps, and return its result.

        Cancelling only gives up the wait.

        Raises:
            EngineClosed, EngineError: see `running`; or the engine ended meanwhile.
            BaseException: what ``ask`` raised.
        """
        worker, bridge = self.running()
        answer: asyncio.Future[T] = bridge.loop.create_future()

        def settle(found: T) -> None:
            if not answer.done():
                answer.set_result(found)

        def fail(error: BaseException) -> None:
            if not answer.done():
                answer.set_exception(error)

        def call(core: EngineCore) -> None:
            try:
                found = for_future(ask, core)
            except BaseException as error:  # the asker's: the engine goes on
                bridge.put(fail, error)
            else:
                bridge.put(settle, found)

        worker.post(call)
        closed = asyncio.ensure_future(self._closed.wait())
        either: set[asyncio.Future[Any]] = {answer, closed}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closed.cancel()
        if not answer.done():
            raise EngineClosed("the engine ended before it could answer") from worker.failure
        return answer.result()

    def post(self, call: Callable[[EngineCore], None]) -> None:
        """Have the thread run ``call`` between two steps; nothing before `start`. Returns at once."""
        if self.worker is not None:
            self.worker.post(call)


def _imported() -> Any:
    """Import what the engine's thread needs and return its module.

    Torch and transformers make a million objects that stay; the collector, which looks at them all each
    time that they have grown by a quarter, would take a tenth of the time.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        importlib.import_module("specstream.engine.build")
        return importlib.import_module("specstream.engine.core.worker")
    finally:
        if collecting:
            gc.enable()


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Leave what exists out of collections meanwhile: loading makes enough objects for several.

    What loading leaves behind is collected as ever. A process that has frozen its objects for its own
    ends keeps them so.
    """
    ours = gc.get_freeze_count() == 0
    if ours:
        gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()
