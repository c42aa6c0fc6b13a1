"""Work in threads: virtual time stands still meanwhile, or is charged with it; and it is told."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from specstream.testing import run_virtual

pytest_plugins = ["pytester"]
HOWS: list[Callable[[float], Coroutine[Any, Any, None]]] = [
    lambda seconds: asyncio.to_thread(time.sleep, seconds),
    lambda seconds: anyio.to_thread.run_sync(time.sleep, seconds),
]


@pytest.mark.parametrize("work", HOWS, ids=["executor", "anyio"])
def test_a_thread_s_time_moves_the_clock(work: Callable[[float], Coroutine[Any, Any, None]]) -> None:
    async def run() -> float:
        await work(0.1)
        took = anyio.current_time()
        await anyio.sleep(100)
        assert anyio.current_time() == took + 100
        time.sleep(0.2)  # noqa: ASYNC251 (the loop's own work takes no virtual time)
        await anyio.lowlevel.checkpoint()
        assert anyio.current_time() == took + 100
        return took

    assert 0.09 < run_virtual(run(), charge_threads=True) < 0.25


@pytest.mark.parametrize("work", HOWS, ids=["executor", "anyio"])
def test_what_two_threads_do_at_once_counts_once_and_timers_run_meanwhile(
    work: Callable[[float], Coroutine[Any, Any, None]],
) -> None:
    async def run() -> list[float]:
        times = []

        async def tick(after: float) -> None:
            await anyio.sleep(after)
            times.append(anyio.current_time())

        async with anyio.create_task_group() as group:
            group.start_soon(tick, 0.05)
            group.start_soon(work, 0.15)
            group.start_soon(work, 0.2)
        return [*times, anyio.current_time()]

    ticked, ended = run_virtual(run(), charge_threads=True)
    assert 0.05 <= ticked < 0.15 and 0.19 < ended < 0.34


def test_a_busy_loop_does_not_hide_a_thread_s_time_nor_add_its_own() -> None:
    async def run() -> float:
        asleep = asyncio.ensure_future(asyncio.to_thread(time.sleep, 0.05))
        await anyio.lowlevel.checkpoint()
        time.sleep(0.25)  # noqa: ASYNC251
        await asleep
        return anyio.current_time()

    assert 0.04 < run_virtual(run(), charge_threads=True) < 0.2


@pytest.mark.parametrize("work", HOWS, ids=["executor", "anyio"])
@pytest.mark.parametrize("charge", [False, True])
def test_what_is_not_counted_is_told(
    work: Callable[[float], Coroutine[Any, Any, None]], charge: bool
) -> None:
    told = list[float]()

    async def run() -> float:
        await work(0.1)
        return anyio.current_time()

    took = run_virtual(run(), charge_threads=charge, tell_uncounted=told.append)
    (uncounted,) = told
    assert (0.09 < uncounted < 0.25 and took == 0) if not charge else uncounted == 0


def test_it_is_told_of_a_run_that_fails_too() -> None:
    told = list[float]()

    async def run() -> None:
        await asyncio.to_thread(time.sleep, 0.05)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_virtual(run(), tell_uncounted=told.append)
    assert told[0] > 0.04


def test_a_thread_that_waits_for_the_loop_s_timer_meets_it() -> None:
    """Charged or not, a thread under way and a timer don't block each other for ever."""

    async def run() -> bool:
        opened = list[bool]()
        gate = threading.Event()

        async def open_gate() -> None:
            await anyio.sleep(0.02)
            gate.set()

        async with anyio.create_task_group() as group:
            group.start_soon(open_gate)
            opened.append(await asyncio.to_thread(gate.wait, 10))
        return opened[0]

    assert run_virtual(run(), charge_threads=True)


@pytest.mark.slow
def test_the_mark_and_the_summary(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import asyncio
        import time

        import pytest


        @pytest.mark.specstream_virtual_time(charge_threads=True)
        async def test_counted():
            await asyncio.to_thread(time.sleep, 0.1)
            assert 0.09 < asyncio.get_running_loop().time() < 1


        @pytest.mark.specstream_virtual_time
        async def test_not_counted():
            await asyncio.to_thread(time.sleep, 0.1)
            assert asyncio.get_running_loop().time() == 0


        @pytest.mark.specstream_virtual_time
        async def test_without_threads():
            await asyncio.sleep(100)


        @pytest.mark.specstream_virtual_time(charge_thread=True)
        async def test_misspelt():
            pass
        """
    )
    done = pytester.runpytest_subprocess("-p", "specstream.testing.plugin", "--strict-markers")
    done.assert_outcomes(passed=3, failed=1)
    done.stdout.fnmatch_lines(
        [
            "*specstream_virtual_time takes charge_threads=True or nothing*",
            "virtual time: 1 test worked 0.1? s in threads, which its clock did not count "
            "(charge_threads=True does): *::test_not_counted",
        ]
    )
    only = pytester.runpytest_subprocess(
        "-p", "specstream.testing.plugin", "-k", "test_counted or without"
    )
    only.stdout.no_fnmatch_line("virtual time:*")
