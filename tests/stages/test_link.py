"""The hand-over between stages: bounds, order, cancel, abandon."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from specstream.errors import AdapterFailed
from specstream.stages.contract import Link
from specstream.types import Cancel, Flush, Revoke

pytestmark = pytest.mark.virtual_time


async def read_all(link: Link[Any]) -> list[Any]:
    return [item async for item in link]


async def test_room_for_at_least_one() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Link(0)


@pytest.mark.parametrize("seed", range(30))
async def test_against_a_list(seed: int) -> None:
    """Random sends, reads, close, cancel and abandon, checked step by step against plain lists."""
    rng = random.Random(seed)
    capacity = rng.randint(1, 4)
    link: Link[int] = Link(capacity)
    unread: list[Any] = []
    waiting: list[int] = []  # sent, but without room yet
    got: list[Any] = []
    expected: list[Any] = []
    over = False  # closed, cancelled or abandoned: later sends are dropped
    async with anyio.create_task_group() as group:
        for number in range(60):
            act = rng.choices(["send", "read", "close", "cancel", "abandon"], [12, 12, 1, 1, 1])[0]
            if act == "send":
                group.start_soon(link.send, number)
                if not over:
                    waiting.append(number)
            elif act == "read" and unread:
                got.append(await anext(link))
                expected.append(unread.pop(0))
            elif act == "close":
                link.close()
                over, waiting = True, []
            elif act == "cancel" and not link.cancelled:
                link.cancel(Cancel("x"))
                over, waiting, unread = True, [], [Cancel("x")]
            elif act == "abandon":
                link.abandon()
                over, waiting, unread = True, [], []
            while waiting and len(unread) < capacity:
                unread.append(waiting.pop(0))
            await anyio.wait_all_tasks_blocked()
            assert len(link.unread) == len(unread) <= capacity
        link.close()
        waiting = []
    assert got == expected
    assert await read_all(link) == unread
    assert link.finished


async def test_controls_keep_their_place() -> None:
    link: Link[int] = Link(8)
    items = [1, Flush(), 2, Revoke(3), 3]
    for item in items:
        await link.send(item)  # type: ignore[arg-type]
    link.close()
    assert await read_all(link) == items


async def test_cancel_overtakes_what_is_unread_and_only_the_first_counts() -> None:
    link: Link[int] = Link(2)
    await link.send(1)
    async with anyio.create_task_group() as group:
        group.start_soon(link.send, 2)
        group.start_soon(link.send, 3)
        await anyio.wait_all_tasks_blocked()
        link.cancel(Cancel("first"))
        link.cancel(Cancel("second"))
    await link.send(4)
    assert link.cancel_pending
    assert await anext(link) == Cancel("first")
    assert not link.cancel_pending
    assert link.cancelled
    assert link.finished
    assert await read_all(link) == []


async def test_a_cancel_after_the_end_is_still_delivered() -> None:
    link: Link[int] = Link(2)
    await link.send(1)
    link.close()
    assert await read_all(link) == [1]
    link.cancel(Cancel("late"))
    assert link.cancelled
    assert not link.cancel_pending, "a receiver that has finished makes nothing that is unwanted"
    assert await read_all(link) == [Cancel("late")]


@pytest.mark.parametrize("end", ["close", "cancel", "abandon"])
async def test_whatever_ends_the_link_frees_a_sender_that_waits(end: str) -> None:
    link: Link[int] = Link(1)
    await link.send(1)
    async with anyio.create_task_group() as group:
        group.start_soon(link.send, 2)
        await anyio.wait_all_tasks_blocked()
        link.cancel(Cancel()) if end == "cancel" else getattr(link, end)()
    assert await read_all(link) == {"close": [1], "cancel": [Cancel()], "abandon": []}[end]


async def test_a_cancelled_call_neither_sends_nor_loses() -> None:
    link: Link[int] = Link(1)
    with anyio.move_on_after(1):
        await anext(link)
    await link.send(1)
    with anyio.move_on_after(1):
        await link.send(2)
    link.close()
    assert await read_all(link) == [1]


# --- within -------------------------------------------------------------------------------------


async def test_an_item_that_is_there_is_taken_at_once() -> None:
    link: Link[int] = Link()
    await link.send(1)
    assert await link.within(0.0) == 1
    await link.send(2)
    assert await link.within(None) == 2


async def test_a_wait_ends_with_its_time_with_an_item_or_when_it_is_woken() -> None:
    link: Link[int] = Link()
    began = anyio.current_time()
    assert await link.within(2.0) is None
    assert anyio.current_time() - began == pytest.approx(2.0)
    loop = asyncio.get_running_loop()
    loop.call_later(1.0, link.wake)
    assert await link.within(None) is None
    link.wake()  # nobody waits
    loop.call_later(1.0, link.unread.append, 3)
    loop.call_later(1.0, link.wake)
    assert await link.within(5.0) == 3, "an item goes before the time"
    assert anyio.current_time() - began == pytest.approx(4.0)


async def test_a_wait_ends_with_the_stream_and_cancelling_it_loses_nothing() -> None:
    link: Link[int] = Link()
    with anyio.move_on_after(1.0):
        await link.within(9.0)
    assert not link.starved
    await link.send(1)
    link.close()
    assert await link.within(9.0) == 1
    with pytest.raises(StopAsyncIteration):
        await link.within(9.0)
    assert link.finished


# --- unless_cancelled ---------------------------------------------------------------------------


async def test_work_that_nobody_cancels() -> None:
    link: Link[int] = Link()

    async def work() -> str:
        await anyio.sleep(1)
        return "done"

    assert await link.unless_cancelled(work) == "done"
    assert not link.interruptible


@pytest.mark.parametrize("error", [AdapterFailed("broke"), ValueError("broke"), StopAsyncIteration()])
async def test_an_error_comes_out_as_it_is(error: Exception) -> None:
    link: Link[int] = Link()

    async def work() -> None:
        await anyio.lowlevel.checkpoint()
        raise error

    with pytest.raises(type(error)) as caught:
        await link.unless_cancelled(work)
    assert caught.value is error
    assert not link.interruptible


async def test_a_cancel_stops_all_work_at_once_and_no_more_begins() -> None:
    link: Link[int] = Link()
    log: list[str] = []

    def work(name: str) -> Callable[[], Awaitable[str]]:
        async def run() -> str:
            try:
                await anyio.sleep(1000)
            finally:
                log.append(f"{name} let go")
            return name

        return run

    async def wait(name: str) -> None:
        assert await link.unless_cancelled(work(name)) is None
        log.append(f"{name} returned")

    async with anyio.create_task_group() as group:
        group.start_soon(wait, "a")
        group.start_soon(wait, "b")
        await anyio.wait_all_tasks_blocked()
        now = anyio.current_time()
        link.cancel(Cancel())
    assert anyio.current_time() == now
    assert sorted(log) == ["a let go", "a returned", "b let go", "b returned"]
    assert await link.unless_cancelled(work("c")) is None
    assert len(log) == 4
    assert await read_all(link) == [Cancel()]


async def test_a_cancellation_from_outside_passes_through() -> None:
    link: Link[int] = Link()
    with anyio.move_on_after(1) as scope:
        await link.unless_cancelled(anyio.sleep_forever)
        pytest.fail("the call must not return")
    assert scope.cancelled_caught
    assert not link.interruptible
