"""The output side of a stage: items made of drafted text wait here until that is verified."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio

from specstream.pipeline.life import Gate
from specstream.pipeline.limits import Watch
from specstream.pipeline.link import Link
from specstream.signals import Signal
from specstream.types import Cancel

__all__ = ["Outlet"]


class Outlet:
    """Passes on what a stage yields, and holds back what is made of drafted text.

    Stages that take drafts get every item at once. The log and other stages get it once its text is
    verified.

    Args:
        source: The link that the stage reads.
        sinks: The links that the stages behind it read.
        gate: Holds what is made of drafted text.
        watch: Enforces the stage's limits.
        emit: Puts an item into the log.
        capacity: Maximum items that are held; then the stage waits.
    """

    def __init__(
        self,
        source: Link[Any],
        sinks: Sequence[Link[Any]],
        gate: Gate,
        watch: Watch,
        emit: Callable[[Any], Awaitable[None]],
        capacity: int,
    ) -> None:
        self.source = source
        self.sinks = sinks
        self.gate = gate
        self.watch = watch
        self._emit = emit
        self._capacity = capacity
        self._in_order = anyio.Lock()
        self._judged = Signal()

    async def give(self, item: Any) -> None:
        """Pass on an item, or hold it; waits while too much is held."""
        self.gate.put(item, self.source.reach)
        await self._release()
        for sink in self.sinks:
            if sink.drafted:
                await sink.send(item)
        await self.held_below(self._capacity)

    async def judge(self) -> None:
        """Text was verified or revoked: release what may be, drop what is void."""
        if self.gate.held:
            await self._release()
            self._judged.notify()

    def cancel(self, cancel: Cancel) -> None:
        """The turn is cancelled: the stage's next item is ``cancel``, and nothing waits. Idempotent."""
        self.source.cancel(cancel)
        self._judged.notify()

    async def _release(self) -> None:
        async with self._in_order:
            while (item := self.gate.ready()) is not None:
                await self._emit(item)
                for sink in self.sinks:
                    if not sink.drafted:
                        await sink.send(item)

    async def held_below(self, limit: int) -> None:
        """Wait until fewer items are held."""
        while self.gate.held >= limit and not self.source.cancelled:
            await self._judged.wait()
