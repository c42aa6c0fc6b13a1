"""Drafted text on its way to the pipeline, shown to somebody else as well."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Self

from specstream.types import Chunk, Preview

__all__ = ["PreviewTap"]


class PreviewTap:
    """A generation for a pipeline, whose previews are given to ``show`` first.

    What the pipeline reads stays the same. A pipeline that doesn't ask for previews gets none, and
    ``show`` is still called. Cancelling an iteration that waits loses nothing.
    """

    def __init__(self, generation: Any, show: Callable[[Preview], None]) -> None:
        self._generation = generation
        self._items: AsyncIterator[Chunk | Preview] = aiter(
            getattr(generation, "previewed", lambda: generation)()
        )
        self._show = show
        self._previews = False

    def previewed(self) -> Self:
        """The same, with the previews."""
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
