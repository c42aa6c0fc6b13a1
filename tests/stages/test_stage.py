"""The pipeline: one ordered log, isolated failures, cancel, bounds."""

import random
from collections.abc import AsyncGenerator, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from specstream.errors import AdapterFailed, ConfigError, EngineFailed, SpecstreamError
from specstream.stages.contract import Inlet
from specstream.stages.pipeline import Event, Pipeline, Run, Stage, StageFailed
from specstream.stages.stages import SegmentStage, VoiceStage
from specstream.types import Cancel, Chunk, Flush, Phrase, Revoke, Speech
from tests.support.standins import Relay, ToneVoice, events_by_source, stream

pytestmark = pytest.mark.virtual_time


class Step:
    """Passes on ``(name, item)``; counts; can wait, fail, or refuse to hear of a cancel."""

    def __init__(
        self,
        name: str,
        *,
        delay: Callable[[], float] | None = None,
        fail_at: int | None = None,
        error: Exception | None = None,
        copies: int = 1,
    ) -> None:
        self.name = name
        self.taken: list[Any] = []
        self.released = 0
        self._delay = delay
        self._fail_at = fail_at
        self._error = error or RuntimeError("pop")
        self.copies = copies

    async def run(self, items: Inlet[Any]) -> AsyncGenerator[Any, None]:
        try:
            async for item in items:
                if isinstance(item, (Flush, Revoke, Cancel)):
                    yield item
                    continue
                self.taken.append(item)
                if len(self.taken) - 1 == self._fail_at:
                    raise self._error
                if self._delay is not None:
                    await anyio.sleep(self._delay())
                for _ in range(self.copies):
                    yield (self.name, item)
        finally:
            self.released += 1


def made(name: str, items: Any) -> list[Any]:
    return [(name, item) for item in items]


async def gathered(run: Run) -> list[Event]:
    return [event async for event in run]


async def test_a_stage_without_a_name_is_refused() -> None:
    nameless = Step("")
    del nameless.name
    with pytest.raises(ConfigError, match="needs a name"):
        Pipeline([[nameless]], head=Step("head"))


async def test_an_error_of_the_callers_clock_is_raised_as_it_is() -> None:
    broken = False

    def clock() -> float:
        return 1 / 0 if broken else 0.0

    pipeline = Pipeline([[Step("a")]], head=Step("head"), clock=clock)

    async def turn() -> None:
        nonlocal broken
        async with pipeline.run(stream(["x"])) as run:
            broken = True
            await gathered(run)

    with pytest.raises(ZeroDivisionError):
        await turn()


async def test_a_stream_of_text_is_spoken() -> None:
    async def text() -> AsyncGenerator[str, None]:
        for piece in ("Hel", "lo. ", "Good day."):
            yield piece

    pipeline = Pipeline([[VoiceStage(ToneVoice())]], head=SegmentStage())
    async with pipeline.run(text()) as run:
        items = [event.item for event in await gathered(run)]
    assert "".join(item.text for item in items if isinstance(item, Chunk)) == "Hello. Good day."
    assert "".join(item.text for item in items if isinstance(item, Phrase)) == "Hello. Good day."
    assert any(isinstance(item, Speech) for item in items)


@pytest.mark.parametrize("wrong", [Step, ToneVoice(), 3])
async def test_what_is_no_stage_is_named(wrong: Any) -> None:
    for branches, head in (([[wrong]], Step("head")), ([[Step("a")]], wrong)):
        with pytest.raises(ConfigError, match=r"no stage: wrap an adapter, as in VoiceStage\(voice\)"):
            Pipeline(branches, head=head)


# --- order --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
async def test_one_log_numbered_in_order_with_causes_before_effects(seed: int) -> None:
    rng = random.Random(seed)

    def step(name: str) -> Step:
        return Step(name, delay=lambda: rng.choice([0, 0, 0.01, 0.5]), copies=rng.randint(1, 3))

    branches = [[step(f"{b}.{s}") for s in range(rng.randint(1, 3))] for b in range(3)]
    head, capacity = step("head"), rng.choice([1, 2, 5])
    line = Pipeline(branches, head=head, capacity=capacity, clock=anyio.current_time)
    async with line.run(stream(range(25))) as run:
        events = []
        async for event in run:
            events.append(event)
            await anyio.sleep(rng.choice([0, 0, 0.2]))
    assert [event.seq for event in events] == list(range(len(events)))
    assert [event.t_ms for event in events] == sorted(event.t_ms for event in events)
    seen: list[Any] = []
    for event in events:
        item: Any = event.item
        assert event.source == "engine" or item[1] in seen
        seen.append(item)
    for branch in branches:
        count = 25
        for stage in [head, *branch]:
            count *= stage.copies
            assert len([e for e in events if e.source == stage.name]) == count
            assert stage.released == 1


async def test_a_branch_gets_all_that_the_head_gives_controls_in_place() -> None:
    items = [1, Flush(), 2, Revoke(1), 3]
    line = Pipeline([[Step("a"), Step("b")], [Step("c")]], head=Relay())
    async with line.run(stream(items)) as run:
        found = await events_by_source(run)
    assert found["engine"] == found["text"] == items
    assert found["c"] == [("c", 1), Flush(), ("c", 2), Revoke(1), ("c", 3)]
    assert found["b"] == [("b", ("a", 1)), Flush(), ("b", ("a", 2)), Revoke(1), ("b", ("a", 3))]


async def test_no_branches_and_no_items() -> None:
    async with Pipeline([], head=Relay()).run(stream([1, 2])) as run:
        assert await events_by_source(run) == {"engine": [1, 2], "text": [1, 2]}
    async with Pipeline([[Step("a")]], head=Relay()).run(stream([])) as run:
        assert await gathered(run) == []
    with pytest.raises(ConfigError, match="at least one stage"):
        Pipeline([[Step("a")], []], head=Relay())


# --- failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [AdapterFailed("no ink"), RuntimeError("pop")], ids=str)
async def test_a_broken_stage_ends_its_branch_and_nothing_else(error: Exception) -> None:
    first, broken, after = Step("a"), Step("b", fail_at=2, error=error), Step("c")
    line = Pipeline([[first, broken, after], [Step("d")]], head=Relay(), capacity=1)
    async with line.run(stream(range(30))) as run:
        found = await events_by_source(run)
    failure = found["b"].pop()
    assert isinstance(failure, StageFailed)
    assert type(failure.error) is AdapterFailed
    if isinstance(error, AdapterFailed):
        assert failure.error is error
    else:
        assert str(failure.error) == "stage 'b' broke: RuntimeError: pop"
        assert failure.error.__cause__ is error
    assert found["b"] == made("b", made("a", range(2)))
    assert found["c"] == made("c", found["b"]), "what came before is carried to the end"
    assert found["engine"] == found["text"] == list(range(30))
    assert found["a"] == made("a", range(30)), "a stage before the broken one goes on unheard"
    assert found["d"] == made("d", range(30))
    assert (first.released, broken.released, after.released) == (1, 1, 1)


async def test_a_broken_head_leaves_the_text() -> None:
    line = Pipeline([[Step("a")]], head=Step("head", fail_at=1), capacity=1)
    async with line.run(stream(range(30))) as run:
        found = await events_by_source(run)
    assert found["engine"] == list(range(30))
    assert found["a"] == made("a", [("head", 0)])
    assert isinstance(found["head"][-1], StageFailed)


@pytest.mark.parametrize("error", [EngineFailed("the loop died"), KeyError("vocabulary")], ids=repr)
async def test_a_failing_source_delivers_what_it_gave_then_raises(error: Exception) -> None:
    error.__cause__ = cause = OSError("disk")

    async def source() -> AsyncGenerator[int, None]:
        yield 1
        yield 2
        raise error

    found = []
    line = Pipeline([[Step("a", delay=lambda: 1.0), Step("b")]], head=Relay())

    async def read() -> None:
        async with line.run(source()) as run:
            async for event in run:
                found.append((event.source, event.item))

    with pytest.raises(type(error)) as caught:
        await read()
    assert caught.value is error
    assert error.__cause__ is cause
    assert [item for name, item in found if name == "b"] == made("b", made("a", [1, 2]))


async def test_an_error_in_the_block_comes_out_as_it_is() -> None:
    stage = Step("a", delay=lambda: 100.0)
    error = SpecstreamError("mine")
    error.__cause__ = cause = ValueError("deeper")

    async def read() -> None:
        async with Pipeline([[stage]], head=Relay()).run(stream(range(5))) as run:
            async for event in run:
                if event.source == "text":
                    raise error

    with pytest.raises(SpecstreamError) as caught:
        await read()
    assert caught.value is error
    assert error.__cause__ is cause
    assert stage.released == 1


# --- cancel -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
async def test_cancel_at_any_event(seed: int) -> None:
    """Each stage ends with one Cancel; nothing is taken up after it; all was let go."""
    rng = random.Random(seed)
    stages = [Step(name, delay=lambda: rng.choice([0, 0.1]), copies=2) for name in "abc"]
    line = Pipeline([stages[:2], stages[2:]], head=Relay(), capacity=rng.choice([1, 3, 64]))
    pulled: list[Any] = []
    stop = rng.randrange(40)
    async with line.run(stream(range(1000), pulled.append)) as run:
        after: list[Event] = []
        async for event in run:
            if run.cancelled:
                after.append(event)
            if event.seq == stop:
                taken, given = [len(stage.taken) for stage in stages], len(pulled)
                run.cancel("enough")
                run.cancel("again")
        assert run.cancelled == Cancel("enough")
        assert len(pulled) <= given + 1
        assert [len(stage.taken) for stage in stages] == taken
    for name in ("text", "a", "b", "c"):
        ends = [event.item for event in after if event.source == name]
        assert ends[-1:] == [Cancel("enough")]
        assert ends.count(Cancel("enough")) == 1
    assert [stage.released for stage in stages] == [1, 1, 1]


async def test_what_a_stage_made_before_it_heard_of_the_cancel_is_dropped() -> None:
    class Deaf:
        """Makes a lot from one item without looking up."""

        name = "deaf"

        async def run(self, items: Inlet[Any]) -> AsyncGenerator[Any, None]:
            async for item in items:
                if isinstance(item, Cancel):
                    yield "rest"
                    yield item
                    return
                for number in range(100):
                    yield number

    async with Pipeline([[Deaf()]], head=Relay()).run(stream([1, 2])) as run:
        found = []
        async for event in run:
            if event.source == "deaf":
                found.append(event.item)
                if event.item == 3:
                    await anyio.wait_all_tasks_blocked()  # the log is full of what was made
                    run.cancel()
    assert found[:4] == [0, 1, 2, 3]
    assert found[-2:] == ["rest", Cancel()]
    assert len(found) < 80


async def test_the_rest_after_the_end_is_not_dropped_by_a_late_cancel() -> None:
    class Resting:
        name = "resting"

        async def run(self, items: Inlet[Any]) -> AsyncGenerator[Any, None]:
            async for item in items:
                yield item
            for number in range(5):
                yield f"rest {number}"

    async with Pipeline([[Resting()]], head=Relay(), capacity=1).run(stream([])) as run:
        found = []
        async for event in run:
            found.append(event.item)
            run.cancel("late")
    assert found == [f"rest {number}" for number in range(5)]


async def test_cancel_before_anything_happened() -> None:
    pulled: list[Any] = []
    async with Pipeline([[Step("a")]], head=Relay()).run(stream(range(5), pulled.append)) as run:
        run.cancel("never mind")
        found = await events_by_source(run)
    assert found == {"text": [Cancel("never mind")], "a": [Cancel("never mind")]}
    assert pulled == []


async def test_a_source_that_hangs_is_cancelled_too() -> None:
    async def hanging() -> AsyncGenerator[int, None]:
        yield 1
        await anyio.sleep_forever()

    async with Pipeline([[Step("a")]], head=Relay()).run(hanging()) as run:
        found = []
        async for event in run:
            found.append(event.item)
            if event.source == "a" and not run.cancelled:
                run.cancel("enough")
    assert found.count(Cancel("enough")) == 2


async def test_leaving_early_lets_go_of_everything() -> None:
    stages = [Step("a", delay=lambda: 100.0), Step("b")]
    ended = []

    async def source() -> AsyncGenerator[int, None]:
        try:
            for number in range(1000):
                yield number
                await anyio.sleep(0.01)
        finally:
            ended.append(True)

    chunks = source()
    async with Pipeline([[stages[0]], [stages[1]]], head=Relay()).run(chunks) as run:
        async for event in run:
            if event.seq == 7:
                break
    await chunks.aclose()
    assert [stage.released for stage in stages] == [1, 1]
    assert ended == [True]
    assert run.cancelled == Cancel("closed")
    assert [event async for event in run] == []


# --- bounds -------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [1, 4, 16])
async def test_a_reader_that_stops_stops_the_source_and_loses_nothing(capacity: int) -> None:
    pulled: list[Any] = []
    line = Pipeline([[Step("a"), Step("b")], [Step("c")]], head=Relay(), capacity=capacity)
    async with line.run(stream(range(500), pulled.append)) as run:
        read = [await anext(run) for _ in range(10)]
        await anyio.wait_all_tasks_blocked()
        stuck = len(pulled)
        # The log, and then at most a full link and an item in hand before every stage.
        assert stuck <= len(read) + capacity + 4 * (capacity + 2)
        await anyio.sleep(1000)
        assert len(pulled) == stuck
        rest = await gathered(run)
    items = [e.item for e in [*read, *rest] if e.source == "b"]
    assert items == made("b", made("a", range(500)))


async def test_a_slow_stage_holds_the_source_back() -> None:
    pulled: list[Any] = []
    slow, quick = Step("slow", delay=lambda: 1.0), Step("quick")
    line = Pipeline([[slow], [quick]], head=Relay(), capacity=3)
    async with line.run(stream(range(100), pulled.append)) as run:
        async for event in run:
            if isinstance(event.item, tuple) and event.source == "slow":
                done = event.item[1] + 1
                assert len(pulled) <= done + 3 + 3 + 4
                assert len(quick.taken) <= done + 3 + 3


async def test_several_senders_share_one_full_log_fairly() -> None:
    """A stage that never waits for anything can't keep the others out of the log."""
    busy, calm = Step("busy", copies=50), Step("calm")
    stages: list[list[Stage[Any, Any]]] = [[busy], [calm]]
    async with Pipeline(stages, head=Relay(), capacity=1).run(stream(range(20))) as run:
        order = [event.source for event in await gathered(run)]
    assert order.index("calm") < 20
