"""The pipeline that joins stages, and answers held back: their stages work ahead, within a bound."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

import anyio

from specstream.checks import sole_error
from specstream.errors import ConfigError
from specstream.signals import finished
from specstream.stages.contract import Event, Stage, StageFailed, as_failure
from specstream.stages.deadline import VoicePace
from specstream.stages.drafts import Account, DraftEvent, Presynthesis, PresynthesisReport
from specstream.stages.limits import Limits
from specstream.stages.run import Run
from specstream.stages.stages import AvatarStage
from specstream.types import Chunk

__all__ = ["Event", "HeldChunks", "Hold", "Pipeline", "Run", "Stage", "StageFailed", "as_failure"]

_MOST_ITEMS = 1 << 20  # that may wait between two stages


class Pipeline:
    """A head stage (text to phrases) and branches of stages behind it.

    ``Pipeline([[voice, avatar], [prompt]], head=segmenter)``: every branch gets what the head
    yields; within a branch each stage gets what the one before it yields. Everything that any
    stage yields is also an event of the run. All links are bounded by ``capacity`` items (those of
    drafted text by at least 16), so a reader that stops reading stops the whole turn, back to the
    token stream, and loses nothing. A stage that hangs, never ends, or makes more than its text can
    justify is stopped (``limits``). Without a head and branches the chunks themselves are the events.

    A head that wants previews (`SegmentStage`) makes the engine show what it has drafted; with its
    ``drafts=True``, stages that take drafts begin on it, within ``presynthesis``. What the run gives
    out stays the same, only sooner. ``trace`` is called with each `DraftEvent`.
    """

    def __init__(
        self,
        branches: Sequence[Sequence[Stage[Any, Any]]],
        *,
        head: Stage[Any, Any] | None,
        capacity: int = 64,
        clock: Callable[[], float] = time.monotonic,
        limits: Limits | None = None,
        presynthesis: Presynthesis | None = None,
        trace: Callable[[DraftEvent], None] | None = None,
    ) -> None:
        if not isinstance(capacity, int) or not 1 <= capacity <= _MOST_ITEMS:
            raise ConfigError(f"capacity is a number from 1 to {_MOST_ITEMS}, not {capacity!r:.40}")
        if any(not isinstance(branch, Sequence) for branch in branches):
            raise ConfigError("branches are lists of stages: [[VoiceStage(voice)], [...]]")
        if any(not branch for branch in branches):
            raise ConfigError("a pipeline branch needs at least one stage")
        if any(isinstance(branch[0], AvatarStage) for branch in branches):
            raise ConfigError("an avatar follows a voice: [VoiceStage(voice), AvatarStage(avatar)]")
        if head is None and branches:
            raise ConfigError("the branches of a pipeline need a head, such as SegmentStage()")
        stages = [stage for branch in branches for stage in branch]
        for stage in stages if head is None else [head, *stages]:
            if isinstance(stage, type) or not hasattr(stage, "run"):
                raise ConfigError(
                    f"{stage!r:.80} is no stage: wrap an adapter, as in VoiceStage(voice), "
                    "AvatarStage(avatar) or PromptStage(prompt)"
                )
            if not isinstance(getattr(stage, "name", None), str):
                raise ConfigError(f"{stage!r:.80} needs a name, the source of its events")
        self._branches = [list(branch) for branch in branches]
        self._head = head
        self._account = Account(presynthesis or Presynthesis())
        self._settings = (capacity, limits or Limits(), clock, self._account, VoicePace(), trace)

    @property
    def presynthesis(self) -> PresynthesisReport:
        """What pre-synthesis has saved and wasted so far."""
        return self._account.report

    @asynccontextmanager
    async def run(self, chunks: AsyncIterable[Any]) -> AsyncGenerator[Run, None]:
        """Run one turn over ``chunks``: an `Engine` generation, or any stream of `Chunk` or of text.

        Leaving the block early cancels the turn and waits until every stage has let go. A stage
        that breaks becomes a `StageFailed` event; the other branches go on.
        """
        run = Run(*self._settings)
        # A task of its own: if a scope inside a group is cancelled together with it, anyio 4.16 takes
        # back one cancel of the group's task too many, and a cancel by asyncio could be lost.
        work = asyncio.create_task(run.work(chunks, self._head, self._branches))
        try:
            yield run
        finally:
            run.leave()
            work.cancel()
            await finished(asyncio.wait([work]))
        if not work.cancelled() and (error := work.exception()) is not None:
            error = sole_error(error)
            raise error from error.__cause__


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
