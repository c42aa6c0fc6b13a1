"""Times the parts of a step without making the device wait for the host."""

from __future__ import annotations

import time

import torch

__all__ = ["Stopwatch"]


class Stopwatch:
    """Marks moments on the device's own time line; the spans between them are read afterwards.

    On a CPU a mark is the clock's reading. On a GPU, where a call returns before its work is done, it
    is an event in the stream; read it behind a transfer, which has waited for the stream anyway.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._marks: list[float | torch.cuda.Event] = []
        self.mark()

    def mark(self) -> None:
        """Now."""
        if self._on_gpu:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def spans_ms(self) -> list[float]:
        """Milliseconds between each mark and the next. Waits for the last one, if need be."""
        spans = []
        last = self._marks[-1]
        if isinstance(last, torch.cuda.Event):
            last.synchronize()
        for start, end in zip(self._marks, self._marks[1:], strict=False):
            if isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
                spans.append(start.elapsed_time(end))
            elif isinstance(start, float) and isinstance(end, float):
                spans.append((end - start) * 1e3)
        return spans
