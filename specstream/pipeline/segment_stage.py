"""The head of a pipeline: text, as the engine commits and drafts it, to phrases."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable

import anyio

from specstream.pipeline.drafting import DraftedPhrases
from specstream.pipeline.life import Confirmed, Drafted, Withdrawn
from specstream.pipeline.link import Inlet
from specstream.pipeline.segment import Segmenter
from specstream.types import Cancel, Chunk, Control, Flush, Phrase, Preview, Revoke

__all__ = ["SegmentStage"]


class SegmentStage:
    """`Chunk` to `Phrase`. Text that has waited ``deadline_s`` for a boundary is spoken anyway.

    Args:
        make: Makes the segmenter of a turn.
        deadline_s: Seconds that text waits.
        clock: Seconds.
        drafts: Cut what the engine has drafted, too, for stages that can begin on it (see
            `specstream.pipeline.life`). What is released stays the same.
        lookahead: Let what is drafted decide whether verified text ends a phrase (see
            `Segmenter.look`). Only verified text is cut.

    Attributes:
        drafts: Whether drafted text is cut.
        previews: Whether the stage wants to be shown what is drafted.
    """

    name = "text"

    def __init__(
        self,
        make: Callable[[], Segmenter] = Segmenter,
        *,
        deadline_s: float = 0.7,
        clock: Callable[[], float] = time.monotonic,
        drafts: bool = False,
        lookahead: bool = False,
    ) -> None:
        self._make = make
        self._deadline_s = deadline_s
        self._clock = clock
        self._lookahead = lookahead
        self.drafts = drafts
        self.previews = drafts or lookahead

    async def run(
        self, items: Inlet[Chunk | Preview]
    ) -> AsyncGenerator[Phrase | Drafted | Confirmed | Withdrawn | Control, None]:
        """One turn."""
        segmenter = self._make()
        drafts = DraftedPhrases(segmenter)
        deadline: float | None = None
        while True:
            item: Chunk | Preview | Control | None = None
            try:
                left = None if deadline is None else max(0.0, deadline - self._clock())
                with anyio.move_on_after(left):
                    item = await anext(items)
            except StopAsyncIteration:
                break
            phrases: list[Phrase] = []
            if isinstance(item, Preview):
                phrases = segmenter.look(item.text) if self._lookahead else []
                if phrases:
                    deadline = self._clock() + self._deadline_s if segmenter.pending else None
            elif isinstance(item, Chunk):
                for void in drafts.judged(item):
                    yield void
                phrases = segmenter.add(item)
                if phrases or deadline is None:
                    deadline = self._clock() + self._deadline_s
                if not segmenter.pending:
                    deadline = None
            elif item is None:
                phrases = segmenter.flush()
                deadline = None  # what can't be spoken yet waits for more text, not for time
            elif isinstance(item, Flush):
                phrases = segmenter.flush()
            elif isinstance(item, Revoke):
                for void in drafts.clear():
                    yield void
                segmenter.revoke(item.from_char)
            for phrase in drafts.verified(phrases):
                yield phrase
            if isinstance(item, Preview):
                for drafted in drafts.preview(item) if self.drafts else ():
                    yield drafted
            elif item is not None and not isinstance(item, Chunk):
                yield item
                if isinstance(item, Cancel):
                    return
        for phrase in [*drafts.verified(segmenter.close()), *drafts.clear()]:
            yield phrase
