"""A signal wakes who waits, and keeps nobody who has gone; the loop's clock follows the running loop."""

from __future__ import annotations

import asyncio

import anyio
import anyio.lowlevel
import pytest

from specstream.signals import LoopClock, Signal


@pytest.mark.virtual_time
async def test_a_change_wakes_all_who_wait_and_nobody_later() -> None:
    signal, woken = Signal(), []

    async def wait(name: str) -> None:
        await signal.wait()
        woken.append(name)

    async with anyio.create_task_group() as group:
        signal.notify()  # before anybody waits
        for name in "abc":
            group.start_soon(wait, name)
        await anyio.wait_all_tasks_blocked()
        assert woken == []
        signal.notify()
        await anyio.wait_all_tasks_blocked()
        assert sorted(woken) == ["a", "b", "c"]
        with anyio.move_on_after(1.0) as late:
            await signal.wait()
        assert late.cancelled_caught


@pytest.mark.virtual_time
async def test_who_gives_up_is_not_kept_and_takes_nobody_along() -> None:
    signal, woken = Signal(), []
    for _ in range(100):
        with anyio.move_on_after(0.01):
            await signal.wait()
    assert not signal._waiting

    async def wait() -> None:
        await signal.wait()
        woken.append(True)

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        with anyio.CancelScope() as scope:
            group.start_soon(anyio.lowlevel.checkpoint)
            scope.cancel()
            await signal.wait()
        await anyio.wait_all_tasks_blocked()
        assert not woken
        signal.notify()
    assert woken == [True]


def test_the_clock_goes_by_the_loop_that_runs() -> None:
    clock = LoopClock()

    class Loop(asyncio.SelectorEventLoop):
        def time(self) -> float:
            return 1e6 + super().time()

    async def off() -> float:
        return clock.now() - asyncio.get_running_loop().time()

    assert abs(asyncio.run(off())) < 1.0
    with asyncio.Runner(loop_factory=Loop) as runner:
        assert abs(runner.run(off())) < 1.0
    with pytest.raises(RuntimeError):
        clock.now()
