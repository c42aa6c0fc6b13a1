"""One turn's run of a pipeline."""

from __future__ import annotations

import math
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Sequence,
)
from contextlib import aclosing
from functools import partial
from typing import Any

import anyio

from specstream.errors import AdapterFailed, SpecstreamError
from specstream.pipeline.contract import Event, Stage, StageFailed, as_failure
from specstream.pipeline.deadline import Deadlines
from specstream.pipeline.life import Drafted, Gate, Life, LifeEvent
from specstream.pipeline.limits import Limits, Watch
from specstream.pipeline.link import Link
from specstream.pipeline.outlet import Outlet
from specstream.pipeline.presynthesis import Account
from specstream.pipeline.spans import ReplySpans
from specstream.pipeline.voice_pace import VoicePace
from specstream.types import Cancel, Phrase, Preview, Speech

__all__ = ["Run"]


class Run:
    """One turn under way: iterate over its events, in order.

    The iteration ends after the last stage has. If the token stream itself failed, the chunks before
    the failure still pass through every branch; then the iteration raises its error.

    Attributes:
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
        trace: Callable[[LifeEvent], None] | None,
    ) -> None:
        self._deadlines = Deadlines(pace)
        self._account = account.turn(clock)
        self._life = Life(self._account, trace)
        self._outlets: list[Outlet] = []
        self._capacity = capacity
        self._limits = limits
        self._log: Link[Event] = Link(capacity)
        self._links: list[Link[Any]] = []
        self._watches: list[Watch] = []
        self._chars = 0  # length of the text that the stages were given
        self._source = anyio.CancelScope()
        self._clock = clock
        self._started = clock()
        self._seq = 0
        self._in_order = anyio.Lock()  # events enter the log in the order of their numbers
        self._error: Exception | None = None
        self._spans = ReplySpans.open()
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
            for link in self._links:
                link.cancel(self.cancelled)
            for outlet in self._outlets:
                outlet.cancel()

    def heard(self, heard_s: Callable[[], float]) -> None:
        """Size phrases by the audio ahead: ``heard_s()`` says how many seconds of it were heard."""
        self._deadlines.follow(heard_s)

    @property
    def count(self) -> int:
        """Number of events made so far."""
        return self._seq

    def stop(self, name: str, failure: SpecstreamError) -> None:
        """Stop the stages of that name because of what they made; they end as if they had failed."""
        for watch in self._watches:
            if watch.name == name:
                watch.stop(failure)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        try:
            item = await self._log.inlet.__anext__()
        except StopAsyncIteration:
            if self._error is not None:
                raise self._error from self._error.__cause__
            raise
        assert isinstance(item, Event)
        return item

    async def _emit(self, source: str, item: object) -> None:
        async with self._in_order:
            event = Event(self._seq, (self._clock() - self._started) * 1e3, source, item)
            if self._spans is not None:
                self._spans.saw(item)
            await self._log.send(event)
            self._seq += 1

    def leave(self) -> None:
        """Cancel the turn and drop its log, so that no stage waits for a reader."""
        self.cancel("closed")
        self._log.abandon()

    async def patrol(self) -> None:
        """Watch the stages until cancelled, and stop one that stalls."""
        while True:
            await anyio.sleep(self._limits.stall_s / 8)
            for watch in self._watches:
                watch.look()

    def _link(self, *, drafted: bool = False) -> Link[Any]:
        link: Link[Any] = Link(self._capacity, drafted=drafted)
        self._links.append(link)
        if self.cancelled is not None:
            link.cancel(self.cancelled)
        return link

    async def drive(
        self,
        chunks: AsyncIterable[Any],
        head: Stage[Any, Any],
        branches: Sequence[Sequence[Stage[Any, Any]]],
    ) -> None:
        """Run every stage; feed the head from the token stream."""
        source = self._link()
        source.inlet.deadlines = self._deadlines
        drafting = bool(getattr(head, "drafts", False))
        previews = drafting or bool(getattr(head, "previews", False))
        try:
            async with anyio.create_task_group() as group:
                firsts = []
                for branch in branches:
                    takes = [drafting]  # whether each stage, and every one before it, takes drafts
                    for stage in branch:
                        takes.append(takes[-1] and bool(getattr(stage, "takes_drafts", False)))
                    links = [self._link(drafted=taken) for taken in takes[1:]]
                    firsts.append(links[0])
                    for at, stage in enumerate(branch):
                        outlet = self._outlet(stage.name, links[at], links[at + 1 : at + 2])
                        group.start_soon(self._run_stage, stage, outlet, outlet.give)
                self._life.taken = any(link.drafted for link in firsts)
                main = self._outlet(head.name, source, firsts)
                group.start_soon(self._run_stage, head, main, self._direct)
                if previews:
                    chunks = getattr(chunks, "previewed", lambda: chunks)()
                try:
                    with self._source:
                        async for chunk in chunks:
                            self._life.note("read", "engine", chunk)
                            if not isinstance(chunk, Preview):
                                await self._emit("engine", chunk)
                            await source.send(chunk)
                except Exception as error:
                    self._error = error
                    self.broken = True
                except anyio.get_cancelled_exc_class():
                    if _is_cancelled():
                        raise
                    self._error = AdapterFailed("the token stream was cancelled from elsewhere")
                if self.cancelled is not None and hasattr(chunks, "cancel"):
                    chunks.cancel()  # else the engine would go on writing what nobody reads
                source.close()
        finally:
            self._log.close()
            if self._spans is not None:
                self._spans.close(self._error)

    def _outlet(self, name: str, source: Link[Any], sinks: Sequence[Link[Any]]) -> Outlet:
        account = self._account if source.drafted else None
        gate = Gate(self._life, name, account, drafted=source.drafted)
        self._outlets.append(Outlet(source, sinks, gate, partial(self._emit, name), self._capacity))
        return self._outlets[-1]

    async def _run_stage(
        self, stage: Stage[Any, Any], outlet: Outlet, give: Callable[[Any], Awaitable[None]]
    ) -> None:
        watch = Watch(stage.name, outlet.source, self._limits)
        self._watches.append(watch)
        failure: SpecstreamError | None = None
        try:
            try:
                with watch.scope:
                    await self._relay(stage, outlet, watch, give)
            except Exception as error:
                failure = as_failure(stage.name, error)
            except anyio.get_cancelled_exc_class():
                if _is_cancelled():
                    raise
                elsewhere = f"stage {stage.name!r} waited for something that was cancelled"
                failure = AdapterFailed(elsewhere)
            failure = watch.failure or failure
            watch.rest()
            outlet.source.abandon()
            if outlet is self._outlets[-1]:  # the head's
                self._life.end()
                await self._judge()
            else:
                self._deadlines.stop()
            await outlet.drain()
            if failure is not None:
                self.broken = True
                await self._emit(stage.name, StageFailed(failure))
        finally:
            watch.rest()
            outlet.source.abandon()
            for sink in outlet.sinks:
                sink.close()

    async def _relay(
        self,
        stage: Stage[Any, Any],
        outlet: Outlet,
        watch: Watch,
        give: Callable[[Any], Awaitable[None]],
    ) -> None:
        """Pass on what the stage yields to the log and to the stages behind it."""
        async with aclosing(stage.run(outlet.source.inlet)) as outputs:
            watch.work()
            asked = anyio.current_time()
            async for item in outputs:
                watch.rest()
                if not outlet.source.cancel_pending:  # else made before the stage read the Cancel
                    phrase = item.phrase if isinstance(item, Drafted) else item
                    if isinstance(phrase, Phrase):
                        self._chars = max(self._chars, phrase.chars.end)
                    watch.check(item, self._chars)
                    if isinstance(item, Speech):
                        self.made_s += item.samples.length / item.sample_rate
                        self._deadlines.made(item, anyio.current_time() - asked)
                    await give(item)
                    if isinstance(item, Cancel):
                        break  # nothing may follow it
                watch.work()
                asked = anyio.current_time()

    async def _direct(self, item: Any) -> None:
        """Pass on what the head yields: to the log, and to the branches by what they take."""
        head = self._outlets[-1]
        log, plain, drafts = self._life.route(head.gate.name, item)
        if log is not None:
            await self._emit(head.gate.name, log)
        await self._judge()
        for sink in head.sinks:
            if (given := drafts if sink.drafted else plain) is not None:
                await sink.send(given)

    async def _judge(self) -> None:
        """Release what has been verified, drop what has been revoked."""
        for outlet in self._outlets:
            await outlet.judge()


def _is_cancelled() -> bool:
    """Whether the turn itself is being cancelled, not only something that was awaited."""
    return anyio.current_effective_deadline() == -math.inf
