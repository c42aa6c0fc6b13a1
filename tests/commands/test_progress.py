"""The display while models load."""

import asyncio
import io
import logging
import sys
from collections.abc import Iterator
from typing import Self

import pytest

from specstream.commands.shared.progress import Progress, forecast, loaded, show_log
from specstream.config import EngineConfig
from specstream.engine.engine import Engine
from specstream.errors import ModelError, ModelNotFound


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Slow(Engine):
    """An engine that takes three seconds to load, or fails to."""

    def __init__(self, error: ModelError | None = None) -> None:
        super().__init__(EngineConfig())
        self.error = error
        self.begun = self.left = False

    async def __aenter__(self) -> Self:
        self.begun = True
        await asyncio.sleep(3.1)
        if self.error is not None:
            raise self.error
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.left = True


@pytest.mark.virtual_time
async def test_a_terminal_shows_for_how_long_already_and_then_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    async with loaded(engine := Slow()) as given:
        assert given is engine and not engine.left
        lines = shown.getvalue().split("\r\033[K")
        seconds = [line.removeprefix("loading the models … ") for line in lines if line]
        assert list(dict.fromkeys(seconds)) == ["0 s", "1 s", "2 s", "3 s"]
        assert lines[-1] == "" and "\n" not in shown.getvalue()
        written = len(shown.getvalue())
        await asyncio.sleep(5)
    assert len(shown.getvalue()) == written
    assert engine.left


@pytest.mark.virtual_time
async def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", shown := io.StringIO())
    async with loaded(Slow()):
        pass
    assert shown.getvalue() == ""


@pytest.mark.virtual_time
async def test_what_fails_clears_its_line_and_is_raised_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    with pytest.raises(ModelNotFound, match="nowhere"):
        async with loaded(Slow(ModelNotFound("nowhere"))):
            pass
    assert shown.getvalue().endswith(" s\r\033[K")


async def test_an_interrupt_just_before_it_begins_is_not_forgotten() -> None:
    """If it were delivered during the engine's first import, it would wait for the import's end."""
    engine = Slow()
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loaded(engine).__aenter__()
    task.uncancel()
    assert not engine.begun


@pytest.fixture
def quiet() -> Iterator[logging.Logger]:
    log = logging.getLogger("specstream.model")
    before, log.handlers = log.handlers, []
    yield log
    log.handlers = before
    log.setLevel(logging.NOTSET)


@pytest.mark.parametrize(
    ("stream", "line"),
    [(Terminal(), "\r\033[Kspecstream: one of two\n"), (io.StringIO(), "specstream: one of two\n")],
)
def test_compiling_is_told_on_lines_of_its_own(
    stream: io.StringIO, line: str, quiet: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    quiet.setLevel(logging.WARNING)
    show_log(info=True)
    quiet.info("one of %s", "two")
    assert stream.getvalue() == line


def test_a_terminal_has_one_line_that_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    now = [0.0]
    stream = Terminal()
    progress = Progress(stream, lambda: now[0])
    tell = progress.phase("prompt")
    for done in range(3):
        tell(done, 50)
        now[0] += 30.0
    shown = stream.getvalue().split("\r\x1b[K")
    assert shown == ["", "prompt 0 of 50", "prompt 1 of 50, about 24 min left",
                     "prompt 2 of 50, about 24 min left"]  # fmt: skip
    assert "\n" not in stream.getvalue()
    progress.phase("a name that is much longer than the terminal is wide:")(1, 9)
    assert len(stream.getvalue().split("\r\x1b[K")[-1]) == 39
    progress.clear()
    assert stream.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_elsewhere_a_line_comes_now_and_then(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")  # a terminal that can't rewrite is treated as a pipe
    now = [0.0]
    progress = Progress(stream, lambda: now[0], every=60.0)
    tell = progress.phase("prompt")
    for done in range(1, 51):
        now[0] += 5.0
        tell(done, 50)
    progress.clear()
    assert stream.getvalue().splitlines() == [
        "prompt 12 of 50, about 3 min left",
        "prompt 24 of 50, about 2 min left",
        "prompt 36 of 50, about 1 min left",
        "prompt 48 of 50, about 10 s left",
    ]


@pytest.mark.parametrize(
    ("used", "done", "total", "most", "says"),
    [
        (10.0, 0, 5, None, ""),
        (10.0, 5, 5, None, ""),
        (10.0, 1, 3, None, ", about 20 s left"),
        (10.0, 1, 3, 4.4, ", about 4 s left"),  # a budget ends it sooner
        (10.0, 1, 3, -2.0, ", about 1 s left"),
        (600.0, 1, 61, None, ", about 10.0 h left"),
    ],
)
def test_the_forecast_is_what_the_steps_took(
    used: float, done: int, total: int, most: float | None, says: str
) -> None:
    assert forecast(used, done, total, most) == says


def test_no_step_is_counted_beyond_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    tell = Progress(shown := Terminal()).phase("turn")
    tell(37, 30)
    assert shown.getvalue().endswith("turn 30 of 30")
