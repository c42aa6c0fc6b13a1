"""The one thread that every arm computes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

__all__ = ["BenchThread", "Stopped"]

T = TypeVar("T")


class Stopped(Exception):
    """Somebody wants to leave in the middle of a reply."""


class BenchThread:
    """A thread of its own, with a pool of CPU threads of its own, for all that is measured.

    Each thread that calls torch gets an OpenMP pool. Where the pools together have more threads than
    the machine has cores, libgomp puts workers to sleep between operations, and whatever is measured
    runs at two thirds of its speed. One thread for all arms is one pool, and the same one for all.
    Nothing else in the process may compute with torch while it is open.
    """

    def __init__(self, threads: int) -> None:
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(
            1, "specstream-bench", initializer=torch.set_num_threads, initargs=(threads,)
        )

    async def call(self, work: Callable[[], T]) -> T:
        """Run ``work()`` there; when cancelled, wait until it has stopped."""
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._stopping.set()
            await asyncio.wait([future])
            future.cancelled() or future.exception()  # looked at, so that nobody complains
            raise

    @property
    def stopping(self) -> bool:
        """Whether somebody wants the work under way to end."""
        return self._stopping.is_set()

    def check(self) -> None:
        """Called between tokens.

        Raises:
            Stopped: leave now.
        """
        if self._stopping.is_set():
            raise Stopped

    def close(self) -> None:
        """End the thread, and with it its pool."""
        self._pool.shutdown()
