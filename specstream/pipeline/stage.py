"""Stages and the pipeline that joins them.

A stage turns one stream into another. Controls (`Flush`, `Revoke`, `Cancel`) travel in the same
stream as the items, in order; every stage passes them on once it has acted on them.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import anyio
from anyio.abc import TaskGroup

from specstream.errors import AdapterFailed, ConfigError, SpecstreamError
from specstream.pipeline.limits import Limits, Watch
from specstream.pipeline.link import Inlet, Link
from specstream.types import Cancel, Control, Phrase

__all__ = ["Event", "Pipeline", "Run", "Stage", "StageFailed", "as_failure"]

In = TypeVar("In")
Out_co = TypeVar("Out_co", covariant=True)


class Stage(Protocol[In, Out_co]):
    """Turns a stream of ``In`` into a stream of ``Out``.

    ``run`` is called once a turn. It must yield every control that it receives, after acting on it:
    on ``Revoke`` it drops what it holds from past that offset, on ``Flush`` it first yields what is
    half-way, on ``Cancel`` it yields only what brings a consumer to rest. It ends when ``items``
    ends. Closing the generator early releases whatever the turn held.
    """

    @property
    def name(self) -> str:
        """Which stage an event comes from."""
        ...

    def run(self, items: Inlet[In]) -> AsyncGenerator[Out_co | Control, None]:
        """One turn."""
        ...


@dataclass(frozen=True, slots=True)
class StageFailed:
    """A stage broke; its branch ends here, the text and the other branches go on."""

    error: SpecstreamError


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the turn's ordered, numbered log.

    ``source`` is the stage that made ``item`` (``"engine"`` for the chunks themselves). ``t_ms``
    counts from the start of the run.
    """

    seq: int
    t_ms: float
    source: str
    item: object


class Run:
    """One turn under way: iterate over its events, in order.

    The iteration ends after the last stage has. If the token stream itself failed, what it had
    given is still carried to the end of every branch; then the iteration raises its error.
    """

    def __init__(self, capacity: int, clock: Callable[[], float]) -> None:
        self._log: Link[Event] = Link(capacity)
        self._links: list[Link[Any]] = []
        self._watches: list[Watch] = []
        self._chars = 0  # of the text that the stages were given
        self._source = anyio.CancelScope()
        self._clock = clock
        self._started = clock()
        self._seq = 0
        self._turnstile = anyio.Lock()  # entries enter the log in the order of their numbers
        self._error: Exception | None = None
        self.cancelled: Cancel | None = None

    def cancel(self, reason: str = "cancelled") -> None:
        """Stop every stage, front to back, and drop what no stage has taken up yet.

        Returns at once; the log then ends with what brings each branch to rest. Idempotent.
        """
        if self.cancelled is None:
            self.cancelled = Cancel(reason)
            self._source.cancel()
            for link in self._links:
                link.cancel(self.cancelled)

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
        async with self._turnstile:
            event = Event(self._seq, (self._clock() - self._started) * 1e3, source, item)
            await self._log.send(event)
            self._seq += 1

    def stop(self, name: str, failure: SpecstreamError) -> None:
        """Stop the stages of that name: what they made is no good. They end as if they had broken."""
        for watch in self._watches:
            if watch.name == name:
                watch.stop(failure)

    async def _patrol(self, every_s: float) -> None:
        while True:
            await anyio.sleep(every_s)
            for watch in self._watches:
                watch.look()

    def _link(self, capacity: int) -> Link[Any]:
        link: Link[Any] = Link(capacity)
        self._links.append(link)
        if self.cancelled is not None:
            link.cancel(self.cancelled)
        return link


class Pipeline:
    """A head stage (text to phrases) and branches of stages behind it.

    ``Pipeline([[voice, avatar], [prompt]], head=segmenter)``: every branch gets what the head
    yields; within a branch each stage gets what the one before it yields. Everything that any
    stage yields is also an event of the run. All hand-overs are bounded by ``capacity`` items, so a
    reader that stops reading stops the whole turn, back to the token stream, and loses nothing.
    A stage that hangs, never ends, or makes more than its text can be worth is stopped (``limits``).
    """

    def __init__(
        self,
        branches: Sequence[Sequence[Stage[Any, Any]]],
        *,
        head: Stage[Any, Any],
        capacity: int = 64,
        clock: Callable[[], float] = time.monotonic,
        limits: Limits | None = None,
    ) -> None:
        if any(not branch for branch in branches):
            raise ConfigError("a pipeline branch needs at least one stage")
        self._branches = [list(branch) for branch in branches]
        self._head = head
        self._capacity = capacity
        self._clock = clock
        self._limits = limits or Limits()

    @asynccontextmanager
    async def run(self, chunks: AsyncIterable[Any]) -> AsyncGenerator[Run, None]:
        """Run one turn over ``chunks`` (an `Engine` generation, or any stream of `Chunk`).

        Leaving the block early cancels the turn and waits until every stage has let go. A stage
        that breaks becomes a `StageFailed` event; the other branches go on.
        """
        run = Run(self._capacity, self._clock)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._drive, run, chunks)
                group.start_soon(run._patrol, self._limits.stall_s / 8)
                yield run
                run.cancel("closed")
                run._log.abandon()
                group.cancel_scope.cancel()
        except BaseExceptionGroup as errors:
            # Callers catch the typed error that was raised, not a group of one.
            cause: BaseException = errors
            while isinstance(cause, BaseExceptionGroup) and len(cause.exceptions) == 1:
                cause = cause.exceptions[0]
            raise cause from cause.__cause__

    async def _drive(self, run: Run, chunks: AsyncIterable[Any]) -> None:
        head_in = run._link(self._capacity)
        try:
            async with anyio.create_task_group() as group:
                firsts = [self._start_branch(group, run, branch) for branch in self._branches]
                group.start_soon(self._run_stage, run, self._head, head_in, firsts)
                try:
                    with run._source:
                        async for chunk in chunks:
                            await run._emit("engine", chunk)
                            await head_in.send(chunk)
                except Exception as error:
                    run._error = error
                except anyio.get_cancelled_exc_class():
                    if _is_cancelled():
                        raise
                    run._error = AdapterFailed("the token stream was cancelled from elsewhere")
                if run.cancelled is not None and hasattr(chunks, "cancel"):
                    chunks.cancel()  # or it would go on writing what nobody will read
                head_in.close()
        finally:
            run._log.close()

    def _start_branch(
        self, group: TaskGroup, run: Run, branch: Sequence[Stage[Any, Any]]
    ) -> Link[Any]:
        links = [run._link(self._capacity) for _ in branch]
        for position, stage in enumerate(branch):
            following = links[position + 1 : position + 2]
            group.start_soon(self._run_stage, run, stage, links[position], following)
        return links[0]

    async def _run_stage(
        self, run: Run, stage: Stage[Any, Any], source: Link[Any], sinks: Sequence[Link[Any]]
    ) -> None:
        watch = Watch(stage.name, source, self._limits)
        run._watches.append(watch)
        failure: SpecstreamError | None = None
        try:
            try:
                with watch.scope:
                    await self._relay(run, stage, source, sinks, watch)
            except Exception as error:
                failure = as_failure(stage.name, error)
            except anyio.get_cancelled_exc_class():
                if _is_cancelled():
                    raise
                elsewhere = f"stage {stage.name!r} waited for something that was cancelled"
                failure = AdapterFailed(elsewhere)
            failure = watch.failure or failure
            if failure is not None:
                watch.rest()
                await run._emit(stage.name, StageFailed(failure))
        finally:
            watch.rest()
            source.abandon()
            for sink in sinks:
                sink.close()

    @staticmethod
    async def _relay(
        run: Run,
        stage: Stage[Any, Any],
        source: Link[Any],
        sinks: Sequence[Link[Any]],
        watch: Watch,
    ) -> None:
        async with aclosing(stage.run(source.inlet)) as outputs:
            watch.work()
            async for item in outputs:
                watch.rest()
                if source.cancel_pending:
                    watch.work()
                    continue  # made before the stage heard of the cancel: nobody wants it now
                if isinstance(item, Phrase):
                    run._chars = max(run._chars, item.chars.end)
                watch.check(item, run._chars)
                await run._emit(stage.name, item)
                for sink in sinks:
                    await sink.send(item)
                if isinstance(item, Cancel):
                    break  # that was its last word, whatever it would still yield
                watch.work()


def _is_cancelled() -> bool:
    """Whether it is the turn that is being cancelled, and not just something that was awaited."""
    return anyio.current_effective_deadline() == -math.inf


def as_failure(stage: str, error: Exception) -> SpecstreamError:
    """What broke the stage, typed; a foreign exception is kept as the cause."""
    if isinstance(error, SpecstreamError):
        return error
    failure = AdapterFailed(f"stage {stage!r} broke: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
