"""From one thread to the event loop: everything, in order, with one wake-up for all that waits."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from specstream.engine.generation import ThreadBridge


def in_a_thread(work: Callable[[], object]) -> None:
    """Run it on another thread, to its end, while this one stands still."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


async def test_everything_arrives_in_order_on_the_loop() -> None:
    bridge = ThreadBridge(asyncio.get_running_loop())
    arrived, here, done = list[int](), threading.get_ident(), asyncio.Event()

    def arrive(item: int) -> None:
        assert threading.get_ident() == here
        arrived.append(item)
        if item == 4999:
            done.set()

    def put() -> None:
        for item in range(5000):
            bridge.put(arrive, item)

    thread = threading.Thread(target=put)
    thread.start()
    async with asyncio.timeout(60):
        await done.wait()
    thread.join()
    assert arrived == list(range(5000))


async def test_items_that_wait_wake_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    bridge = ThreadBridge(loop)
    arrived, wakes = list[int](), list[object]()
    wake = loop.call_soon_threadsafe

    def counted(callback: Callable[[], None], *args: Any) -> Any:
        wakes.append(callback)
        return wake(callback, *args)

    def put() -> None:
        for item in range(10):
            bridge.put(arrived.append, item)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    for turn in (1, 2):  # once delivered, the next item wakes the loop again
        in_a_thread(put)
        assert wakes == [bridge.deliver] * turn
        await asyncio.sleep(0)
        assert arrived == [*range(10)] * turn


async def test_an_item_put_while_others_are_delivered_is_not_left_behind() -> None:
    bridge = ThreadBridge(asyncio.get_running_loop())
    arrived, done = list[int](), asyncio.Event()

    def arrive(item: int) -> None:
        arrived.append(item)
        if item < 3:  # just when the queue is being emptied
            in_a_thread(lambda: bridge.put(arrive, item + 1))
        else:
            done.set()

    in_a_thread(lambda: bridge.put(arrive, 0))
    async with asyncio.timeout(60):
        await done.wait()
    assert arrived == [0, 1, 2, 3]


async def test_what_waits_can_be_delivered_at_once() -> None:
    bridge = ThreadBridge(asyncio.get_running_loop())
    arrived = list[int]()
    in_a_thread(lambda: bridge.put(arrived.append, 1))
    bridge.deliver()
    bridge.deliver()
    await asyncio.sleep(0)  # the wake-up that was under way finds nothing
    assert arrived == [1]


@pytest.mark.parametrize("before", [0, 1])
def test_a_closed_loop_is_said(before: int) -> None:
    loop = asyncio.new_event_loop()
    bridge = ThreadBridge(loop)
    for item in range(before):
        bridge.put(print, item)  # never delivered: the loop is closed before it runs
    loop.close()
    assert not bridge.put(print, 1)
