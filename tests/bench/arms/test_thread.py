import asyncio
import threading

import pytest

from specstream.bench.arms.base import BenchThread, Stopped


async def test_all_work_is_done_on_one_thread_and_errors_come_back() -> None:
    thread = BenchThread(1)
    names = {await thread.call(lambda: threading.current_thread().name) for _ in range(3)}
    assert len(names) == 1
    assert names != {threading.current_thread().name}
    with pytest.raises(ZeroDivisionError):
        await thread.call(lambda: 1 // 0)
    thread.check()
    thread.close()


async def test_cancelling_tells_the_work_to_stop_and_waits_until_it_has() -> None:
    thread = BenchThread(1)
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        try:
            while True:
                thread.check()
        finally:
            ended.set()

    running = asyncio.ensure_future(thread.call(work))
    await asyncio.to_thread(begun.wait)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended.is_set()
    assert thread.stopping
    with pytest.raises(Stopped):
        thread.check()
    thread.close()
