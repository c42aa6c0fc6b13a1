"""Holds an answer back: its stages work ahead, within a bound, until the answer is released."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import anyio

from specstream.types import Chunk

__all__ = ["HeldChunks", "Hold"]


class Hold:
    """An answer that is prepared before it is known whether it is wanted.

    Args:
        tokens: How far the stages may read before `release`. The engine writes up to its own bound of
            unread chunks (`EngineConfig.max_unread_chunks`) further.

    Attributes:
        released: Whether the answer is wanted.
        wanted: Set once it is.
    """

    def __init__(self, tokens: int) -> None:
        self.released = False
        self.tokens = tokens
        self.wanted = anyio.Event()
        self._calls: list[Callable[[], None]] = []

    def then(self, call: Callable[[], None]) -> None:
        """Register a function that `release` calls."""
        self._calls.append(call)

    def release(self) -> None:
        """Lift the bound on reading, and run the registered calls: the answer is wanted. Idempotent."""
        if not self.released:
            self.released = True
            for call in self._calls:
                call()
            self.wanted.set()


class HeldChunks:
    """A generation that is held. Cancelling an iteration that waits loses nothing."""

    def __init__(self, chunks: Any, hold: Hold) -> None:
        self._chunks = chunks
        self._hold = hold
        self._read = 0

    def previewed(self) -> HeldChunks:
        """See `Generation.previewed`; without previews where there are none."""
        previewed = getattr(self._chunks, "previewed", lambda: self._chunks)
        return HeldChunks(previewed(), self._hold)

    def cancel(self) -> None:
        """See `Generation.cancel`."""
        self._chunks.cancel()

    def __aiter__(self) -> Self:
        self._items = aiter(self._chunks)
        return self

    async def __anext__(self) -> Any:
        if self._read >= self._hold.tokens:
            await self._hold.wanted.wait()
        item = await anext(self._items)
        if isinstance(item, Chunk):
            self._read = item.tokens.end
        return item
