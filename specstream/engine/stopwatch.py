"""Times the parts of a step without making the device wait for the host."""

from __future__ import annotations

import time
from itertools import pairwise

import torch

__all__ = ["Stopwatch"]


class Stopwatch:
    """Marks moments; on a GPU as events in the stream, since calls return before their work is done.

    Read the spans after a transfer from the device, which waits for the stream anyway.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._moments: list[float] = []
        self._events: list[torch.cuda.Event] = []
        self.mark()

    def mark(self) -> None:
        """Mark this moment."""
        if self._on_gpu:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._events.append(event)
        else:
            self._moments.append(time.perf_counter())

    def spans_ms(self) -> list[float]:
        """Return the milliseconds between consecutive marks; on a GPU, wait for the last mark."""
        if self._on_gpu:
            self._events[-1].synchronize()
            return [start.elapsed_time(end) for start, end in pairwise(self._events)]
        return [(end - start) * 1e3 for start, end in pairwise(self._moments)]
