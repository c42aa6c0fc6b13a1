"""One turn's run of a pipeline: its stages, their outputs and the ordered log."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import anyio

from specstream.errors import AdapterFailed, SpecstreamError
from specstream.signals import Signal
from specstream.stages.contract import Event, Link, Stage, StageFailed, WrittenText, as_failure
from specstream.stages.deadline import Deadlines, VoicePace
from specstream.stages.drafts import Account, Drafted, DraftEvent, DraftLedger, Gate
from specstream.stages.interfaces import listened_until
from specstream.stages.limits import Limits, Watch
from specstream.stages.spans import ReplySpans
from specstream.types import Cancel, Phrase, Preview, Speech

__all__ = ["Run", "StageOutput"]


class StageOutput:
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
        self._in_order = asyncio.Lock()
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


# A stage may wait for the verdict on a phrase, which the head gives: that must not wait for the stage
# while it has further phrases and their revokes to send.
_DRAFTED_ROOM = 16
_SILENT = ("avatar", "prompt")  # stages that may end while the voice still speaks


class Run:
    """One turn under way: iterate over its events, in order.

    The iteration ends after the last stage has. If the token stream itself failed, the chunks before
    the failure still pass through every branch; then the iteration raises its error.

    Attributes:
        count: Number of events made so far.
        cancelled: Why the turn was cancelled.
        broken: Whether the token stream or a stage has failed.
        made_s: Seconds of speech that the voice has given.
    """

    def __init__(
        self,
        capacity: int,
        limits: Limits,
        clock: Callable[[], float],
        account: Account,
        pace: VoicePace,
        trace: Callable[[DraftEvent], None] | None,
    ) -> None:
        self._deadlines = Deadlines(pace)
        self._life = DraftLedger(account.turn(clock), trace)
        self._outlets: list[StageOutput] = []  # the head's first
        self._capacity = capacity
        self._limits = limits
        self._log: Link[Event] = Link(capacity)
        self._chars = 0  # length of the text that the stages were given
        self._source = anyio.CancelScope()
        self._clock = clock
        self._started = clock()
        self._in_order = asyncio.Lock()  # events enter the log in the order of their numbers
        self._error: Exception | None = None
        self._spans = ReplySpans.open()
        self.count = 0
        self.cancelled: Cancel | None = None
        self.broken = False
        self.made_s = 0.0

    def cancel(self, reason: str = "cancelled") -> None:
        """Stop every stage, front to back, and drop what no stage has taken up yet.

        Returns at once; the log then ends with what brings each branch to rest. Idempotent.
        """
        if self.cancelled is None:
            self.cancelled = Cancel(reason)
            self._source.cancel()
            for outlet in self._outlets:
                outlet.cancel(self.cancelled)

    def follow(
        self, played_s: Callable[[], float], needed: Callable[[float, bool], object] | None = None
    ) -> None:
        """Size phrases by the audio ahead: ``played_s()`` says how many seconds of it were played.

        ``needed`` is told again and again by when more text is needed, on the event loop's clock, and
        whether there was any audio.
        """
        self._deadlines.follow(played_s, needed)

    def stop(self, name: str, failure: SpecstreamError) -> None:
        """Fail the stages called ``name`` with ``failure``: their output was rejected."""
        for outlet in self._outlets:
            if outlet.watch.name == name:
                outlet.watch.stop(failure)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        try:
            item = await self._log.__anext__()
        except StopAsyncIteration:
            if self._error is not None:
                raise self._error from self._error.__cause__
            raise
        assert isinstance(item, Event)
        return item

    async def _emit(self, source: str, item: object) -> None:
        await asyncio.sleep(0)  # else one branch could end before another has begun
        async with self._in_order:
            await self._enter(source, item)

    async def _enter(self, source: str, item: object) -> None:
        """Append an event to the log; for one sender at a time."""
        event = Event(self.count, (self._clock() - self._started) * 1e3, source, item)
        if self._spans is not None:
            self._spans.saw(item)
        await self._log.send(event)
        self.count += 1

    def end_log(self) -> None:
        """Take no further events; those that are there can still be read. Idempotent."""
        self._log.close()

    def leave(self) -> None:
        """Cancel the turn and drop its log, so that no stage waits for a reader."""
        self.cancel("closed")
        self._log.abandon()
        self._end_spans()  # if the turn was left before it began

    def _end_spans(self) -> None:
        spans, self._spans = self._spans, None
        if spans is not None:
            spans.close(self._error)

    async def patrol(self) -> None:
        """Watch the stages until cancelled, and stop one that stalls."""
        while True:
            await anyio.sleep(self._limits.stall_s / 8)
            for outlet in self._outlets:
                outlet.watch.look()

    async def work(
        self,
        chunks: AsyncIterable[Any],
        head: Stage[Any, Any] | None,
        branches: Sequence[Sequence[Stage[Any, Any]]],
    ) -> None:
        """Run the turn until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.drive, chunks, head, branches)
            group.start_soon(self.patrol)

    async def drive(
        self,
        chunks: AsyncIterable[Any],
        head: Stage[Any, Any] | None,
        branches: Sequence[Sequence[Stage[Any, Any]]],
    ) -> None:
        """Run every stage; feed the head from the token stream."""
        if head is None:
            await self._pass(chunks)
            return
        listened_until.set(lambda: self._deadlines.silent_at)
        source: Link[Any] = Link(self._capacity)
        source.deadlines = self._deadlines
        drafting = bool(getattr(head, "drafts", False))
        previews = drafting or bool(getattr(head, "previews", False))
        try:
            async with anyio.create_task_group() as group:
                lines = [self._links(branch, drafting) for branch in branches]
                main = self._outlet(head, source, [links[0] for links in lines])
                self._life.taken = any(sink.drafted for sink in main.sinks)
                for branch, links in zip(branches, lines, strict=True):
                    for at, stage in enumerate(branch):
                        outlet = self._outlet(stage, links[at], links[at + 1 : at + 2])
                        group.start_soon(self._run_stage, stage, outlet, outlet.give)
                group.start_soon(self._run_stage, head, main, self._direct)
                if previews:
                    chunks = getattr(chunks, "previewed", lambda: chunks)()
                await self._read(chunks, self._feed(chunks, source))
                source.close()
        finally:
            self._log.close()
            self._end_spans()

    async def _pass(self, chunks: AsyncIterable[Any]) -> None:
        """Pass the token stream on to the log: there are no stages."""

        async def emit() -> None:
            text = WrittenText()
            async for chunk in chunks:
                await self._enter("engine", text.chunk(chunk))  # nobody else sends

        try:
            await self._read(chunks, emit())
        finally:
            self._log.close()
            self._end_spans()

    async def _read(self, chunks: AsyncIterable[Any], work: Awaitable[None]) -> None:
        """Do ``work``, which reads the token stream, until the turn is cancelled."""
        self._error = await _fault(self._source, work, "the token stream")
        self.broken |= self._error is not None
        if self.cancelled is not None and hasattr(chunks, "cancel"):
            chunks.cancel()  # else the engine would go on writing what nobody reads

    async def _feed(self, chunks: AsyncIterable[Any], source: Link[Any]) -> None:
        text = WrittenText()
        async for item in chunks:
            chunk = text.chunk(item)
            self._life.note("read", "engine", chunk)
            if not isinstance(chunk, Preview):
                await self._emit("engine", chunk)
            await source.send(chunk)

    def _links(self, branch: Sequence[Stage[Any, Any]], drafting: bool) -> list[Link[Any]]:
        """Make the links that a branch's stages read; drafts go up to the first that takes none."""
        links: list[Link[Any]] = []
        for stage in branch:
            drafting = drafting and bool(getattr(stage, "takes_drafts", False))
            room = max(self._capacity, _DRAFTED_ROOM) if drafting else self._capacity
            links.append(Link(room, drafted=drafting))
        return links

    def _outlet(
        self, stage: Stage[Any, Any], source: Link[Any], sinks: Sequence[Link[Any]]
    ) -> StageOutput:
        name = stage.name
        gate = Gate(self._life, name, drafted=source.drafted)
        watch = Watch(name, source, self._limits)
        emit = partial(self._emit, name)
        outlet = StageOutput(source, sinks, gate, watch, emit, self._capacity)
        self._outlets.append(outlet)
        if self.cancelled is not None:
            outlet.cancel(self.cancelled)
        return outlet

    async def _run_stage(
        self, stage: Stage[Any, Any], outlet: StageOutput, give: Callable[[Any], Awaitable[None]]
    ) -> None:
        watch, who = outlet.watch, f"stage {stage.name!r}"
        try:
            fault = await _fault(watch.scope, self._relay(stage, outlet, give), who)
            fault = watch.failure or fault
            watch.rest()
            outlet.source.abandon()
            if outlet is self._outlets[0]:  # the head's
                self._life.end()
                await self._judge()
            elif stage.name not in _SILENT:
                self._deadlines.stop()
            await outlet.held_below(1)
            if fault is not None:
                self.broken = True
                await self._emit(stage.name, StageFailed(as_failure(who, fault)))
        finally:
            watch.rest()
            outlet.source.abandon()
            for sink in outlet.sinks:
                sink.close()

    async def _relay(
        self, stage: Stage[Any, Any], outlet: StageOutput, give: Callable[[Any], Awaitable[None]]
    ) -> None:
        """Pass on what the stage yields to the log and to the stages behind it."""
        watch = outlet.watch
        async with aclosing(stage.run(outlet.source)) as outputs:
            asked = watch.work()
            async for item in outputs:
                came = watch.rest()
                if not outlet.source.cancel_pending:  # else made before the stage read the Cancel
                    phrase = item.phrase if isinstance(item, Drafted) else item
                    if isinstance(phrase, Phrase):
                        self._chars = max(self._chars, phrase.chars.end)
                    watch.check(item, self._chars)
                    if isinstance(item, Speech):
                        self.made_s += item.samples.length / item.sample_rate
                        self._deadlines.made(item, came - asked)
                    await give(item)
                    if isinstance(item, Cancel):
                        break  # nothing may follow it
                asked = watch.work()

    async def _direct(self, item: Any) -> None:
        """Pass on what the head yields: to the log, and to the branches by what they take."""
        head = self._outlets[0]
        verified, drafts = self._life.route(head.gate.name, item)
        if verified is not None:
            await self._emit(head.gate.name, verified)
        await self._judge()
        for sink in head.sinks:
            if (given := drafts if sink.drafted else verified) is not None:
                await sink.send(given)

    async def _judge(self) -> None:
        """Release what has been verified, drop what has been revoked."""
        for outlet in self._outlets:
            await outlet.judge()


async def _fault(scope: anyio.CancelScope, work: Awaitable[None], who: str) -> Exception | None:
    """Do ``work`` within ``scope``; return what broke it.

    An `AdapterFailed` if what was awaited was cancelled, and not the turn, or for what is no
    `Exception`, as a panic of an extension in Rust: it ends the turn, and not the program.
    """
    try:
        with scope:
            await work
    except Exception as error:
        return error
    except anyio.get_cancelled_exc_class():
        if anyio.current_effective_deadline() == -math.inf:  # the turn itself
            raise
        return AdapterFailed(f"{who} waited for something that was cancelled")
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        return as_failure(who, error)
    return None
