"""The pace of an engine that serves a full batch: tokens a second, tokens a pass, idle time."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch

from specstream.engine.core.request import Request
from specstream.engine.core.step import EngineCore
from specstream.types import SamplingParams
from tests.gpu.context import Context
from tests.gpu.pair import prompts, requests

__all__ = ["Pace", "device_times", "kernel_ms", "measure"]

_WARM = 8  # steps before any is counted
_LEARNING = 64  # the same of `auto`, which learns what passes take and who is accepted
_TRACED = 4  # steps whose kernels are timed


@dataclass(frozen=True)
class Pace:
    """The steps in which a full batch decoded and nobody's prompt was read.

    Attributes:
        steps: Their number.
        step_ms: Mean time of one.
        tokens: Tokens a step and request: of a target pass.
        rate: Tokens a second of all requests.
        busy: Share of a step in which kernels ran; None: not measured.
    """

    steps: int
    step_ms: float
    tokens: float
    rate: float
    busy: float | None = None

    @property
    def words(self) -> str:
        """For the table."""
        idle = "" if self.busy is None else f", idle {max(0.0, 1 - self.busy):.0%}"
        return f"{self.rate:.0f} tok/s, {self.tokens:.2f} a pass, {self.step_ms:.2f} ms a step{idle}"


@torch.inference_mode()
def measure(
    context: Context,
    core: EngineCore,
    params: Callable[[int], SamplingParams],
    at_once: int,
    seconds: float,
    trace: bool = False,
) -> Pace | None:
    """Serve ``at_once`` requests for some seconds, new ones for those that end; None if none decoded.

    ``params`` gives a request's parameters by its number.
    """
    limit, asked, numbers = context.size(10**6, 3), prompts(40), count()
    live = list[Request]()
    steps, spent, tokens = 0, 0.0, 0
    began = time.monotonic()
    warm, first = 0, _LEARNING if core.config.proposer.kind == "auto" else _WARM

    def fill() -> None:
        missing = at_once - len(live)
        each = [next(numbers) for _ in range(missing)]
        texts = [asked[number % len(asked)] for number in each]
        live.extend(requests(core, texts, [params(number) for number in each]))

    while steps < limit and (context.tiny or time.monotonic() - began < seconds):
        live = [request for request in live if not request.over]
        fill()
        decoding = all(request.stats.rounds for request in live)
        before = sum(len(request.token_ids) for request in live)
        start = time.perf_counter()
        core.step()
        took = time.perf_counter() - start
        _raise(live)
        warm += 1
        if decoding and (context.tiny or warm > first):
            steps, spent = steps + 1, spent + took
            tokens += sum(len(request.token_ids) for request in live) - before
    busy = None
    if trace and steps and context.real:
        busy = kernel_ms(core.step, _TRACED) / (spent / steps * 1e3)
    for request in live:
        request.delivery.cancelled = True
    while core.step():
        pass
    if not steps:
        return None
    each = tokens / steps / at_once
    return Pace(steps, spent / steps * 1e3, each, tokens / spent, busy)


def _raise(live: list[Request]) -> None:
    for request in live:
        if request.error is not None:
            raise request.error.__cause__ or request.error


def kernel_ms(work: Callable[[], Any], times: int) -> float:
    """Milliseconds that the device's kernels take in one run of ``work``, as the profiler has them."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as traced:
        for _ in range(times):
            work()
        torch.cuda.synchronize()
    return sum(ms for _, ms, _ in device_times(traced)) / times


def device_times(traced: Any) -> list[tuple[str, float, int]]:
    """Each kernel's name, its milliseconds and its calls, the longest first.

    Operations on the host are told with the times of their kernels, which would count them twice.
    """
    kinds: Any = torch.autograd.DeviceType  # type: ignore[attr-defined]
    found = [
        (event.key, event.self_device_time_total / 1e3, event.count)
        for event in traced.key_averages()
        if event.device_type == kinds.CUDA
    ]
    return sorted(found, key=lambda one: -one[1])
