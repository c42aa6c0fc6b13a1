"""From one thread to the event loop: everything, in order, with few wake-ups, however the loop wakes."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from specstream.bridge import ThreadBridge


@pytest.fixture(params=["bell", "no such kernel", "no descriptor left", "no such loop"])
def make(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], ThreadBridge[int]]:
    """A handover on the running loop, by each way of waking it."""
    if request.param == "no such kernel":
        monkeypatch.delattr(os, "eventfd", raising=False)
    elif not hasattr(os, "eventfd"):
        pytest.skip("this kernel has no eventfd")
    elif request.param == "no descriptor left":

        def exhausted(*_: Any) -> int:
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(os, "eventfd", exhausted)

    def build() -> ThreadBridge[int]:
        loop = asyncio.get_running_loop()
        if request.param == "no such loop":
            # What a loop has that watches no descriptors: the base class's own.
            without = partial(asyncio.AbstractEventLoop.add_reader, loop)
            monkeypatch.setattr(loop, "add_reader", without)
        return ThreadBridge(loop)

    return build


def in_a_thread(work: Callable[[], None]) -> None:
    """Run it on another thread, to its end, while this one stands still."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


async def test_everything_arrives_in_order_on_the_loop(
    make: Callable[[], ThreadBridge[int]],
) -> None:
    handover, arrived, here = make(), list[int](), threading.get_ident()
    done = asyncio.Event()

    def arrive(item: int) -> None:
        assert threading.get_ident() == here
        arrived.append(item)
        if item == 4999:
            done.set()

    def put() -> None:
        for item in range(5000):
            handover.put(arrive, item)

    thread = threading.Thread(target=put)
    thread.start()
    async with asyncio.timeout(60):
        await done.wait()
    thread.join()
    handover.close()
    assert arrived == list(range(5000))


async def test_what_comes_before_the_answer_rings_only_once(
    make: Callable[[], ThreadBridge[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    handover, arrived, rings = make(), list[int](), list[int]()
    full = asyncio.Event()
    where, name = (
        (os, "eventfd_write")
        if handover._bell is not None
        else (asyncio.get_running_loop(), "call_soon_threadsafe")
    )
    ring = getattr(where, name)

    def counted(*args: Any) -> None:
        rings.append(1)
        ring(*args)

    def arrive(item: int) -> None:
        arrived.append(item)
        if item == 9:
            full.set()

    def put() -> None:
        for item in range(10):
            handover.put(arrive, item)

    with monkeypatch.context() as patch:
        patch.setattr(where, name, counted)
        for turn in (1, 2):  # and once answered, it rings again
            full.clear()
            in_a_thread(put)
            assert len(rings) == turn
            async with asyncio.timeout(60):
                await full.wait()
    handover.close()
    assert arrived == [*range(10), *range(10)]


async def test_an_item_put_while_others_are_delivered_is_not_left_behind(
    make: Callable[[], ThreadBridge[int]],
) -> None:
    handover, arrived, done = make(), list[int](), asyncio.Event()

    def arrive(item: int) -> None:
        arrived.append(item)
        if item < 3:  # just when the queue is being emptied
            in_a_thread(lambda: handover.put(arrive, item + 1))
        else:
            done.set()

    in_a_thread(lambda: handover.put(arrive, 0))
    async with asyncio.timeout(60):
        await done.wait()
    handover.close()
    assert arrived == [0, 1, 2, 3]


async def test_closing_delivers_the_rest_and_lets_go(make: Callable[[], ThreadBridge[int]]) -> None:
    handover, arrived = make(), list[int]()
    bell = handover._bell
    in_a_thread(lambda: handover.put(arrived.append, 1))
    handover.close()
    handover.close()
    assert arrived == [1]
    if bell is not None:
        assert not asyncio.get_running_loop().remove_reader(bell)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(bell)
    await asyncio.sleep(0)  # a wake-up that was under way finds nothing


def test_a_closed_loop_is_said() -> None:
    loop = asyncio.new_event_loop()
    handover: ThreadBridge[int] = ThreadBridge(loop)
    bell = handover._bell
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        handover.put(print, 1)
    if bell is not None:
        os.close(bell)
