"""Scene prompts at a generator's own rate: the latest, a bounded queue, or a caption for each block.

Give a sink every item of a turn's events (``sink.add(event.item)``; what is no prompt and no control is
ignored) and let the generator take from it when it is ready::

    async for shot in sink:
        await asyncio.to_thread(stream.update_prompt, shot.prompt)

Nothing here ever holds up the pipeline: ``add`` returns at once, and every sink is bounded. A sink
belongs to one event loop and one generator; `begin` starts the next reply.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from specstream.checks import check_numbers
from specstream.errors import ConfigError
from specstream.signals import Signal
from specstream.types import Cancel, Revoke, ScenePrompt

__all__ = ["LatestPrompt", "PromptBlocks", "PromptQueue"]

_SHOTS = 64  # shots of a reply that are remembered, to go back to after a revoke


class _Sink:
    """What all sinks share: the newest version of each shot, revokes, and the end.

    Attributes:
        shots: By id, the newest versions of the latest shots.
    """

    def __init__(self) -> None:
        self.shots: OrderedDict[str, ScenePrompt] = OrderedDict()
        self._changed = Signal()
        self._closed = False

    def add(self, item: object) -> None:
        """Take the next item of a turn: a prompt, a `Revoke` or a `Cancel`. Never waits.

        A prompt that is no newer version of its shot is ignored. A revoke withdraws the shots that
        show some of its text, a cancel everything that the generator has not taken yet.
        """
        if isinstance(item, ScenePrompt):
            old = self.shots.get(item.shot_id)
            if old is not None and old.rev >= item.rev:
                return
            self.shots[item.shot_id] = item
            if len(self.shots) > _SHOTS:
                self.shots.popitem(last=False)
            self._take_up(item)
        elif isinstance(item, Revoke):
            gone = {name for name, shot in self.shots.items() if shot.span.end > item.from_char}
            for name in gone:
                del self.shots[name]
            self._withdraw(gone)
        elif isinstance(item, Cancel):
            self._give_up()
        self._changed.notify()

    def begin(self) -> None:
        """Begin the next reply, whose spans and times count from 0 again."""
        self.shots.clear()

    def close(self) -> None:
        """No more will be added; what waits can still be taken. Idempotent."""
        self._closed = True
        self._changed.notify()

    def _newest(self) -> ScenePrompt | None:
        """The shot that begins last."""
        return max(self.shots.values(), key=lambda shot: shot.span.start, default=None)

    def _take_up(self, shot: ScenePrompt) -> None:
        """Handle a new version of a shot."""

    def _withdraw(self, gone: set[str]) -> None:
        """Handle the withdrawal of these shots."""

    def _give_up(self) -> None:
        """Drop what the generator has not taken: the turn is cancelled."""


class PromptQueue(_Sink):
    """Every shot in order, ``max_waiting`` at most: for a generator that plays one after another.

    A revision takes the place of the version that waits. One of the shot that was taken last is given
    out again, one of an earlier shot is not. When the queue is full, the oldest shot is dropped. After
    a revoke of what was taken last, the last shot that still holds is given out once more.

    Attributes:
        waiting: By id, the prompts that were not taken yet, in order.
        taken: Prompts that were given out.
        superseded: Prompts that a newer version, a revoke or a cancel replaced before they were taken,
            and rewordings of shots that are past.
        dropped: Prompts that did not fit.

    Raises:
        ConfigError: ``max_waiting`` is below 1.
    """

    def __init__(self, max_waiting: int = 8) -> None:
        check_numbers(1, max_waiting=max_waiting)
        super().__init__()
        self._max_waiting = max_waiting
        self.waiting: OrderedDict[str, ScenePrompt] = OrderedDict()
        self._last: ScenePrompt | None = None  # the prompt that the generator has
        self.taken = self.superseded = self.dropped = 0

    def __aiter__(self) -> PromptQueue:
        return self

    async def __anext__(self) -> ScenePrompt:
        shot = await self.next()
        if shot is None:
            raise StopAsyncIteration
        return shot

    async def next(self) -> ScenePrompt | None:
        """Wait for the next prompt; None once the sink is closed and empty. Cancelling loses nothing."""
        while not self.waiting:
            if self._closed:
                return None
            await self._changed.wait()
        _, self._last = self.waiting.popitem(last=False)
        self.taken += 1
        return self._last

    def interaction(self, shot: ScenePrompt, *, transition_chunks: int | None = None) -> dict[str, Any]:
        """The ``session.interaction`` frame of vLLM-Omni's ``/v1/realtime/video`` for a taken prompt.

        Its event id differs for every prompt that was taken, since the server takes each id once.
        ``transition_chunks`` is the number of chunks over which the picture changes; None leaves it
        to the model.
        """
        body: dict[str, Any] = {
            "event_id": f"{self.taken}-{shot.shot_id}@{shot.rev}",
            "event": {"prompt": shot.prompt},
        }
        if transition_chunks is not None:
            body["transition_chunks"] = transition_chunks
        return {"type": "session.interaction", "interaction": body}

    def begin(self) -> None:
        """Begin the next reply; prompts of the last one that wait can still be taken."""
        super().begin()
        self._last = None

    def _take_up(self, shot: ScenePrompt) -> None:
        past = self._last is not None and shot.span.start < self._last.span.start
        if past and shot.shot_id not in self.waiting:
            self.superseded += 1
            return
        self.superseded += shot.shot_id in self.waiting
        self.waiting[shot.shot_id] = shot  # in the place of the version that waits, if one does
        if self._last is not None and shot.shot_id == self._last.shot_id:
            self.waiting.move_to_end(shot.shot_id, last=False)  # before the shots that follow it
        if len(self.waiting) > self._max_waiting:
            self.waiting.popitem(last=False)
            self.dropped += 1

    def _withdraw(self, gone: set[str]) -> None:
        for name in gone & self.waiting.keys():
            del self.waiting[name]
            self.superseded += 1
        if self._last is not None and self._last.shot_id in gone:
            self._last = self._newest()
            if self._last is not None and not self.waiting:
                self.waiting[self._last.shot_id] = self._last

    def _give_up(self) -> None:
        self.superseded += len(self.waiting)
        self.waiting.clear()


class LatestPrompt(PromptQueue):
    """The newest prompt only: for a generator that shows one prompt until it gets the next.

    A prompt that the generator has not taken by the time the next one comes is never shown. A new
    wording of a shot that is past is not, either.
    """

    def __init__(self) -> None:
        super().__init__(max_waiting=1)

    def _take_up(self, shot: ScenePrompt) -> None:
        waiting = next(iter(self.waiting.values()), self._last)
        if waiting is not None and shot.span.start < waiting.span.start:
            self.superseded += 1
            return
        self._give_up()
        self.waiting[shot.shot_id] = shot


class PromptBlocks(_Sink):
    """A caption for each block of a video: for a generator that makes blocks of fixed length.

    A block shows the shot that is spoken at its middle, by ``t_start_ms``; past the last shot its
    caption is repeated. The first block of a shot, other than the video's first, begins with ``cut``
    (LongLive 2.0 reads it as a change of scene). Blocks that were taken do not change.

    Args:
        block_ms: Length of a block.
        cut: What marks the first block of a shot.

    Raises:
        ConfigError: ``block_ms`` is not above 0.
    """

    def __init__(self, block_ms: float, *, cut: str = "The scene transitions. ") -> None:
        if not block_ms > 0:
            raise ConfigError(f"block_ms must be above 0, not {block_ms}")
        super().__init__()
        self._block_ms = block_ms
        self._cut = cut
        self._block = 0
        self._shown: str | None = None  # the shot of the block that was taken last

    async def next(self) -> str | None:
        """Return the caption of the next block; None where the sink is closed and has no shot.

        Waits for the first shot only: a generator that is ahead of the text gets the last caption
        again. Cancelling loses nothing.
        """
        while not self.shots:
            if self._closed:
                return None
            await self._changed.wait()
        caption, self._shown = self._caption(self._block, self._shown)
        self._block += 1
        return caption

    def layout(self, blocks: int) -> list[str]:
        """Return the captions of a video of ``blocks`` blocks, by the shots so far; [] without any."""
        captions: list[str] = []
        shown: str | None = None
        for block in range(blocks if self.shots else 0):
            caption, shown = self._caption(block, shown)
            captions.append(caption)
        return captions

    def begin(self) -> None:
        """Begin the next reply, whose first block is the next one."""
        super().begin()
        self._block = 0

    def _caption(self, block: int, shown: str | None) -> tuple[str, str]:
        """Return a block's caption and its shot; ``shown`` is the shot of the block before it."""
        middle = (block + 0.5) * self._block_ms
        shots = sorted(self.shots.values(), key=lambda shot: shot.span.start)
        begun = [shot for shot in shots if shot.t_start_ms <= middle]
        shot = begun[-1] if begun else shots[0]
        cut = self._cut if shown not in (None, shot.shot_id) else ""
        return cut + shot.prompt, shot.shot_id
