"""How many CPU threads the experiment gets: all cores, unless somebody else is using them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

__all__ = ["choose_threads", "cores_here", "measure_rate"]

_TRIALS = 4
_SECONDS = 0.25
_BETTER = 1.1  # all cores stand unless fewer threads are faster by this


def cores_here() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose_threads(cores: int, rate: Callable[[int], float]) -> int:
    """All cores, or half of them, or one: whichever computes fastest now, the most in doubt.

    On a busy machine, threads that wait for one whose core is taken are many times slower than
    fewer threads; and erratic, so that nothing measured with them means anything.

    Args:
        cores: How many there are.
        rate: Steps a second with so many threads; asked in turn, several times.
    """
    candidates = sorted({cores, max(1, cores // 2), 1}, reverse=True)
    if len(candidates) == 1:
        return cores
    rates = dict.fromkeys(candidates, 0.0)
    for _ in range(_TRIALS):
        for threads in candidates:
            rates[threads] += rate(threads)
    best = cores
    for threads in candidates[1:]:
        if rates[threads] > _BETTER * rates[best]:
            best = threads
    return best


def measure_rate(threads: int) -> float:
    """Steps a second of a chain of small products, as a decoding model of a few layers makes them."""
    import torch

    torch.set_num_threads(threads)
    weights = torch.randn(8, 1024, 1024)
    with torch.inference_mode():
        row = torch.randn(1, 1024)
        steps, started = 0, time.perf_counter()
        while (spent := time.perf_counter() - started) < _SECONDS:
            for weight in weights:
                row = torch.tanh(row @ weight)
            steps += 1
    return steps / spent
