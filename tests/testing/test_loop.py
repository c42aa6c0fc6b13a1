"""The loop of virtual time, and the pytest plugin that runs a user's test on it."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import anyio
import pytest

from specstream.testing import run_virtual

TESTS = """
import asyncio
import sys

import anyio
import pytest

virtual = pytest.mark.specstream_virtual_time


@pytest.fixture
def hours():
    return 10


@virtual
@pytest.mark.parametrize("seconds", [1, 2])
async def test_marked(hours, seconds):
    began = anyio.current_time()
    await anyio.sleep(hours * 3600 + seconds)
    assert anyio.current_time() == began + 36_000 + seconds


class TestMarked:
    @virtual
    @pytest.mark.asyncio
    async def test_with_pytest_asyncio(self, hours):
        await asyncio.sleep(hours * 3600)


@virtual
@pytest.mark.anyio
async def test_with_anyio():
    await anyio.sleep(36_000)


@pytest.mark.asyncio
async def test_others_are_left_alone():
    assert type(asyncio.get_running_loop()).__module__.startswith("asyncio.")


@virtual
async def test_that_waits_for_ever():
    await anyio.Event().wait()


@virtual
def test_that_is_not_async():
    pass


def test_nothing_heavy_was_imported():
    assert "torch" not in sys.modules and "transformers" not in sys.modules
"""


def test_waiting_takes_no_time_and_timers_keep_their_order() -> None:
    async def work() -> list[str]:
        seen: list[str] = []

        async def note(name: str, after: float) -> None:
            await anyio.sleep(after)
            seen.append(f"{name} {anyio.current_time():g}")

        async with anyio.create_task_group() as group:
            for name, after in (("b", 7200.5), ("a", 3600), ("c", 1e6)):
                group.start_soon(note, name, after)
        with anyio.move_on_after(5):
            await anyio.sleep_forever()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 5)
        return [*seen, f"{anyio.current_time():g}"]

    assert run_virtual(work()) == ["a 3600", "b 7200.5", "c 1e+06", "1.00001e+06"]


def test_the_clock_stands_still_while_a_thread_works() -> None:
    async def work() -> list[float]:
        gate, times = threading.Event(), []

        def slow() -> None:
            gate.wait(10)

        async def tick() -> None:
            await anyio.sleep(1)
            times.append(anyio.current_time())

        ticking = asyncio.create_task(tick())
        for run in (anyio.to_thread.run_sync(slow), asyncio.to_thread(slow)):
            gate.clear()
            waiting = asyncio.create_task(run)
            await anyio.lowlevel.checkpoint()
            threading.Timer(0.02, gate.set).start()
            await waiting
            times.append(anyio.current_time())
        await ticking
        return times

    assert run_virtual(work()) == [0, 0, 1]


def test_a_deadlock_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="deadlock"):
        run_virtual(anyio.sleep_forever())


def test_a_deadlock_names_threads_that_are_not_waited_for_and_what_waits_for_them_still_ends() -> None:
    leave, ended = threading.Event(), asyncio.Event()

    async def work() -> None:
        loop = asyncio.get_running_loop()

        def own() -> None:
            leave.wait()
            loop.call_soon_threadsafe(ended.set)

        thread = threading.Thread(target=own, name="of-my-own")
        thread.start()
        try:
            await asyncio.Event().wait()
        finally:
            threading.Timer(0.02, leave.set).start()
            await ended.wait()
            thread.join()

    with pytest.raises(RuntimeError, match=r"deadlock .*there are: .*of-my-own.*ScriptedEngine"):
        run_virtual(work())
    assert ended.is_set()


@pytest.mark.slow
def test_the_plugin_runs_marked_tests_only(tmp_path: Path) -> None:
    (tmp_path / "test_agents.py").write_text(TESTS)
    document = (Path(__file__).parents[2] / "docs/guides/testing.md").read_text()
    (tmp_path / "test_example.py").write_text(document.split("```python\n")[1].split("```")[0])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "specstream.testing.plugin"]
    options = ["-p", "no:cacheprovider", "--strict-markers", "--rootdir", str(tmp_path), "-W", "error"]
    options += ["-o", "asyncio_default_fixture_loop_scope=function"]
    done = subprocess.run(
        [*command, *options, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "2 failed, 7 passed" in done.stdout, done.stdout
    assert "RuntimeError: every task waits and no timer runs: deadlock" in done.stdout
    assert "specstream_virtual_time is for async tests" in done.stdout
