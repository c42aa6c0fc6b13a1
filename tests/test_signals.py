"""A signal wakes who waits, and keeps nobody who has gone; the loop's clock follows the running loop."""

import asyncio

import anyio
import anyio.lowlevel
import pytest

from specstream.signals import LoopClock, Signal, finished


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


@pytest.mark.virtual_time
@pytest.mark.parametrize("cancels", [0, 1, 3])
@pytest.mark.parametrize("fails", [False, True])
async def test_work_is_done_to_its_end_and_a_cancel_comes_after_it(cancels: int, fails: bool) -> None:
    done = list[str]()

    async def work() -> int:
        for step in "abc":
            await anyio.sleep(1)
            done.append(step)
        if fails:
            raise KeyError("mine")
        return 3

    task = asyncio.create_task(finished(work()))
    for _ in range(cancels):
        await anyio.sleep(0.5)
        task.cancel()
    await asyncio.wait([task])
    assert done == ["a", "b", "c"]
    if cancels:
        assert task.cancelled()
    elif fails:
        assert isinstance(task.exception(), KeyError)
    else:
        assert task.result() == 3


@pytest.mark.virtual_time
async def test_a_scope_that_is_cancelled_waits_for_the_work_too() -> None:
    began = anyio.current_time()
    with anyio.move_on_after(0.5) as scope:
        await finished(anyio.sleep(2))
        await anyio.sleep(1)
    assert scope.cancelled_caught and anyio.current_time() == began + 2
