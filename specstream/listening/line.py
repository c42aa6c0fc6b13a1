"""Decides whose recognition runs next where more wait than the recogniser can do at once."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

__all__ = ["WaitingLine"]


class WaitingLine:
    """A line before the recogniser in which short turns go first.

    A turn's place is by the moment at which it came plus the length of its audio. So an answer of two
    seconds waits for none of two minutes that has not begun, and the long one waits for those that come
    during two minutes at most. Each listener waits with one turn at a time, which bounds the line.

    Args:
        workers: Recognitions that may run at once.
    """

    def __init__(self, workers: int = 1) -> None:
        self._free = workers
        self._numbers = itertools.count()
        self._waiting: list[tuple[float, int, anyio.Event]] = []

    @property
    def free(self) -> bool:
        """Whether a recognition could begin at once."""
        return self._free > 0

    @asynccontextmanager
    async def place(self, seconds: float) -> AsyncGenerator[None, None]:
        """Hold a place while the block runs; waits for one. ``seconds``: of audio that is recognised.

        Cancelling while it waits leaves the line.
        """
        await self._enter(seconds)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, seconds: float) -> None:
        if self._free:
            self._free -= 1
            return
        called = anyio.Event()
        entry = (anyio.current_time() + seconds, next(self._numbers), called)
        heapq.heappush(self._waiting, entry)
        try:
            await called.wait()
        except BaseException:
            if called.is_set():
                self._leave()  # the place was given in the same moment
            else:
                self._waiting.remove(entry)
                heapq.heapify(self._waiting)
            raise

    def _leave(self) -> None:
        if self._waiting:
            heapq.heappop(self._waiting)[2].set()
        else:
            self._free += 1
