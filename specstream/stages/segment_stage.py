"""The head of a pipeline: turns the engine's verified and drafted text into phrases."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from operator import eq
from typing import TypeAlias, TypeVar

import anyio

from specstream.checks import check_numbers
from specstream.stages.contract import Inlet
from specstream.stages.deadline import Deadlines
from specstream.stages.drafts import Confirmed, Drafted, Withdrawn
from specstream.text.segmenter import Segmenter
from specstream.types import Cancel, Chunk, Control, Flush, Phrase, Preview, Revoke

__all__ = ["DraftedPhrases", "SegmentStage"]

T = TypeVar("T")

Told: TypeAlias = Phrase | Drafted | Confirmed | Withdrawn
"""Messages about phrases from a segmenter that also cuts drafted text (`specstream.stages.drafts`)."""

_MAX_DRAFTED = 4  # phrases that are cut ahead at most
_ROUNDING_S = 1e-6


class DraftedPhrases:
    """The phrases of one reply that are cut from drafted text and not confirmed yet.

    ``segmenter`` cuts the verified text; its phrases are authoritative. A drafted phrase is confirmed
    when the segmenter cuts the very same phrase. It is withdrawn as soon as one of its tokens is
    rejected, or verified or newly drafted text is cut in another way.
    """

    def __init__(self, segmenter: Segmenter) -> None:
        self._segmenter = segmenter
        self._out: list[Phrase] = []
        self._preview: Preview | None = None

    def preview(self, preview: Preview) -> list[Drafted | Withdrawn]:
        """Cut the verified text that waits and the drafted text behind it; return what has changed."""
        self._preview = preview
        cut = self._segmenter.fork().add(preview.chunk)[:_MAX_DRAFTED]
        same = _common(cut, self._out, _same)
        void = self.withdraw(same) if same < len(cut) else []
        new = cut[len(self._out) :]
        self._out += new
        return [*void, *(Drafted(phrase, preview.round) for phrase in new)]

    def verified(self, phrases: list[Phrase]) -> list[Phrase | Confirmed | Withdrawn]:
        """Take the phrases that the segmenter cut; return them, the drafted ones as `Confirmed`."""
        told: list[Phrase | Confirmed | Withdrawn] = []
        for phrase in phrases:
            if self._out and _same(self._out[0], phrase):
                del self._out[0]
                told.append(Confirmed(phrase))
            else:
                told += [*self.withdraw(), phrase]
        return told

    def judged(self, chunk: Chunk) -> list[Withdrawn]:
        """Withdraw the phrases with tokens that the target rejected in the round of ``chunk``."""
        preview, self._preview = self._preview, None
        if preview is None:
            return []
        end = preview.tokens.start + _common(preview.token_ids, chunk.token_ids, eq)
        void = (at for at, phrase in enumerate(self._out) if phrase.tokens.end > end)
        return self.withdraw(next(void, len(self._out)))

    def withdraw(self, first: int = 0) -> list[Withdrawn]:
        """Withdraw the phrases from the one with this number on."""
        gone = self._out[first:]
        del self._out[first:]
        return [Withdrawn(gone[0].chars.start)] if gone else []


def _common(ones: Sequence[T], others: Sequence[T], same: Callable[[T, T], bool]) -> int:
    """The length of what both begin with."""
    pairs = zip(ones, others, strict=False)
    return sum(1 for _ in takewhile(lambda pair: same(*pair), pairs))


def _same(one: Phrase, other: Phrase) -> bool:
    return replace(one, t_ms=other.t_ms) == other


class SegmentStage:
    """`Chunk` to `Phrase`. Text that has waited ``deadline_s`` for a boundary is spoken anyway.

    Where the turn tells how much of its audio was heard (`Run.follow`), that holds for the first phrase
    only. Later text may wait as long as the audio ahead lasts, and a phrase is longer or shorter than a
    sentence where the voice would fall silent otherwise (see `specstream.stages.deadline`). With
    ``drafts`` it holds for every phrase.

    Args:
        make: Makes the segmenter of a turn.
        deadline_s: Seconds that text waits at most; infinity: until a boundary.
        clock: Returns monotonic seconds.
        drafts: Cut what the engine has drafted, too, for stages that can begin on it (see
            `specstream.stages.drafts`). What is released stays the same.
        lookahead: Let drafted text decide whether verified text ends a phrase (see
            `Segmenter.look`). Only verified text is cut.

    Raises:
        ConfigError: ``deadline_s`` is no number, or below 0.

    Attributes:
        drafts: Whether drafted text is cut.
        previews: Whether the stage reads the engine's `Preview` items.
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
        check_numbers(0.0, math.inf, deadline_s=deadline_s)
        self._make = make
        self._deadline_s = deadline_s
        self._clock = clock
        self._lookahead = lookahead
        self.drafts = drafts
        self.previews = drafts or lookahead

    async def run(self, items: Inlet[Chunk | Preview]) -> AsyncGenerator[Told | Control, None]:
        """Run one turn."""
        segmenter = self._make()
        pace = segmenter.pace = Deadlines() if self.drafts else items.deadlines or Deadlines()
        pace.deadline_s = self._deadline_s
        drafts = DraftedPhrases(segmenter)
        since: float | None = None  # when text began to wait for its deadline
        pace.wake = items.wake
        while True:
            item: Chunk | Preview | Control | None = None
            try:
                item = await items.within(self._left_s(segmenter, pace, since))
            except StopAsyncIteration:
                break
            phrases: list[Phrase] = []
            told: list[Told | Control] = []
            if pace.news and not isinstance(item, Control):
                pace.news, phrases = False, segmenter.again()
            if isinstance(item, Preview):
                phrases += segmenter.look(item.text) if self._lookahead else []
            elif isinstance(item, Chunk):
                told += drafts.judged(item)
                pace.text(item.text)
                phrases += segmenter.add(item)
            elif item is None:
                if not phrases and self._left_s(segmenter, pace, since) == 0:
                    phrases = segmenter.release() if pace.on else segmenter.flush()
                    # What can't be spoken yet waits for more text, not for time.
                    since = self._clock() if phrases and pace.on else None
            elif isinstance(item, Flush):
                told += drafts.withdraw()  # drafted text would be flushed with the verified
                phrases = segmenter.flush()
            elif isinstance(item, Revoke):
                told += drafts.withdraw()
                segmenter.revoke(item.from_char)
                pace.revoked(item.from_char)
            if isinstance(item, Chunk | Preview) and (
                phrases or (since is None and isinstance(item, Chunk))
            ):
                since = self._clock()
            if not segmenter.pending:
                since = None
            told += drafts.verified(phrases)
            if isinstance(item, Preview):
                told += drafts.preview(item) if self.drafts else []
            elif isinstance(item, Control):
                told.append(item)
            for one in told:
                yield one
            if isinstance(item, Cancel):
                return
        while (phrases := segmenter.again(ended=True)) or segmenter.pending:
            if not phrases and not pace.busy:
                phrases = segmenter.release() or segmenter.close()
            for phrase in drafts.verified(phrases):
                yield phrase
            if segmenter.pending and pace.busy:
                await items.unless_cancelled(partial(_woken, pace))
                if items.cancelled:
                    break
        for void in drafts.withdraw():
            yield void
        async for late in items:
            if isinstance(late, Cancel):  # it came while text waited for the voice
                yield late

    def _left_s(self, segmenter: Segmenter, pace: Deadlines, since: float | None) -> float | None:
        """Return in how many seconds waiting text must be released; None: not before more text comes."""
        if pace.news:
            return 0.0
        if since is None:
            return None
        waited_s = self._clock() - since
        left_s = segmenter.due(waited_s) if pace.on else self._deadline_s - waited_s
        return left_s if left_s > _ROUNDING_S else 0.0


async def _woken(pace: Deadlines) -> None:
    """Wait until the voice has news, or for as long as a silent voice is waited for."""
    with anyio.move_on_after(pace.due_s(lambda: 0.0, 0.0)) as scope:
        pace.wake = scope.cancel
        await anyio.sleep_forever()
