"""Fixtures that hold for every test: no leaked tasks or threads, and a clock one can do without."""

import asyncio
import functools
import logging
import os
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Iterator

import anyio.to_thread
import pytest
import pytest_asyncio

from specstream.checks import cache_folder
from specstream.testing import VirtualTimeLoop

# A script's background job ignores interrupts, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run slow tests, too")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    if (mark := item.get_closest_marker("virtual_time")) is not None:
        return {"virtual": functools.partial(VirtualTimeLoop, **mark.kwargs)}
    return {"asyncio": asyncio.new_event_loop}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a machine or an hour of its own, unless asked for by ``-m``.

    Slow tests are left out of a run of all tests, too, unless ``--slow`` asks for them.
    """
    if config.option.markexpr:
        return
    left_out = {"nightly", "gpu", "ray"}
    if not config.option.slow and config.args_source != config.ArgsSource.ARGS:
        left_out.add("slow")
    skipped = [item for item in items if any(item.get_closest_marker(name) for name in left_out)]
    if skipped:
        config.hook.pytest_deselected(items=skipped)
        items[:] = [item for item in items if item not in skipped]


@pytest.fixture(autouse=True)
def _no_leaked_tasks(request: pytest.FixtureRequest) -> None:
    if pytest_asyncio.is_async_test(request.node):  # an event loop for every other test takes long
        request.getfixturevalue("_checks_tasks")


@pytest_asyncio.fixture
async def _checks_tasks() -> AsyncGenerator[None, None]:
    before, loop = asyncio.all_tasks(), asyncio.get_running_loop()
    if isinstance(loop, VirtualTimeLoop):  # `run_virtual` does the same
        loop.watch(anyio.to_thread.current_default_thread_limiter())
    yield
    current = asyncio.current_task()
    leaked = [task for task in asyncio.all_tasks() - before if task is not current and not task.done()]
    if leaked:
        await asyncio.sleep(0)  # in which one that was just cancelled ends
    leaked = [task for task in leaked if not task.done()]
    assert not leaked, f"left running: {leaked}"


@pytest.fixture(autouse=True)
def _log_levels() -> Iterator[None]:
    """Commands show the log of the engine and the models; the next test begins without."""
    logs = [logging.getLogger(name) for name in ("specstream.engine", "specstream.model")]
    before = [(log, log.level, list(log.handlers)) for log in logs]
    yield
    for log, level, handlers in before:
        log.setLevel(level)
        log.handlers[:] = handlers


class _Complaints(logging.Handler):
    """What the engine says of a proposer that broke: replies stay right, so nothing else shows it."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("the proposer broke"):
            self.heard.append(record.getMessage())


@pytest.fixture(autouse=True)
def _no_broken_proposer(request: pytest.FixtureRequest) -> Iterator[None]:
    listening, log = _Complaints(), logging.getLogger("specstream.engine")
    log.addHandler(listening)
    yield
    log.removeHandler(listening)
    if request.node.get_closest_marker("broken_proposer") is None:
        assert not listening.heard


@pytest.fixture
def single_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft model makes each of its steps by a pass of its own."""
    from specstream.model.runner import ModelRunner

    monkeypatch.setattr(ModelRunner, "chain", lambda *_: None)


@pytest.fixture(autouse=True)
def _no_leaked_threads() -> Iterator[None]:
    yield
    engines = [t.name for t in threading.enumerate() if t.name == "specstream-engine"]
    assert not engines, "an engine thread outlived its test"


def pytest_configure(config: pytest.Config) -> None:
    # Before torch is imported anywhere: tests share few cores, and no test may reach for a network.
    for key, value in {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }.items():
        os.environ.setdefault(key, value)
    os.environ.setdefault("TESTED_MODELS", str(cache_folder("models")))  # those a user has pulled
    if (cache := getattr(config, "cache", None)) is not None:  # what a user keeps stays as it is
        os.environ.setdefault("SPECSTREAM_CACHE", str(cache.mkdir("specstream")))
