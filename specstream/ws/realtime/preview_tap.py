"""Shows the drafted text of a generation to a callback, on its way to the pipeline."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Self

from specstream.types import Chunk, Preview

__all__ = ["PreviewTap"]


class PreviewTap:
    """Stands for a generation in a pipeline and passes each `Preview` to ``show`` first.

    The pipeline reads the same items as without it. A pipeline that doesn't ask for previews gets
    none, and ``show`` is still called. Cancelling an iteration that waits loses nothing.
    """

    def __init__(self, generation: Any, show: Callable[[Preview], None]) -> None:
        self._generation = generation
        self._items: AsyncIterator[Chunk | Preview] = aiter(
            getattr(generation, "previewed", lambda: generation)()
        )
        self._show = show
        self._previews = False

    def previewed(self) -> Self:
        """Return this iterator, which from now on also yields the previews."""
        self._previews = True
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk | Preview:
        while True:
            item = await anext(self._items)
            if not isinstance(item, Preview):
                return item
            self._show(item)
            if self._previews:
                return item

    def cancel(self) -> None:
        """See `specstream.generation.Generation.cancel`."""
        self._generation.cancel()
