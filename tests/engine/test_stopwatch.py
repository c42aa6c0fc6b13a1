"""Spans between marks: the clock's on a CPU, the device's own on a GPU, read once and late."""

from __future__ import annotations

import pytest
import torch

from specstream.engine.core.step import Stopwatch


def test_on_a_cpu_spans_are_the_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([10.0, 10.5, 10.5, 12.0])
    monkeypatch.setattr("specstream.engine.core.step.time.perf_counter", lambda: next(moments))
    watch = Stopwatch(torch.device("cpu"))
    for _ in range(3):
        watch.mark()
    assert watch.spans_ms() == [500.0, 0.0, 1500.0]


def test_without_a_mark_there_is_no_span() -> None:
    assert Stopwatch(torch.device("cpu")).spans_ms() == []


class Event:
    """A CUDA event as the stopwatch sees it. ``log`` is what was done to all of them, in order."""

    log: list[str] = []
    at = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        Event.at += 2.0
        self.moment = Event.at
        Event.log.append("record")

    def synchronize(self) -> None:
        Event.log.append("wait")

    def elapsed_time(self, end: Event) -> float:
        assert "wait" in Event.log, "read before the device got there"
        return end.moment - self.moment


def test_on_a_gpu_nothing_waits_before_the_spans_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    Event.log.clear()
    monkeypatch.setattr(torch.cuda, "Event", Event)
    watch = Stopwatch(torch.device("cuda", 0))
    watch.mark()
    watch.mark()
    assert Event.log == ["record"] * 3
    assert watch.spans_ms() == [2.0, 2.0]
    assert Event.log == ["record"] * 3 + ["wait"]


@pytest.mark.gpu
def test_on_a_real_gpu_spans_are_those_of_the_work() -> None:
    device = torch.device("cuda")
    left = torch.randn(4096, 4096, device=device)
    watch = Stopwatch(device)
    watch.mark()
    for _ in range(20):
        left = left @ left.clamp(-1e-3, 1e-3)
    watch.mark()
    nothing, work = watch.spans_ms()
    assert 0.0 <= nothing < work
