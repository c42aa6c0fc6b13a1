from __future__ import annotations

import io

import pytest

from specstream.bench.progress import Progress, forecast


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


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
