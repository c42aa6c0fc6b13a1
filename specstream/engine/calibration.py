"""What a draft step and a target pass cost here: a short measurement when an engine is built."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from specstream.model.runner import ForwardInput, ModelRunner
from specstream.spec.control.costs import Costs

__all__ = ["calibrate", "pass_ms"]

_CONTEXT = 128
_WIDTHS = (1, 2, 5, 9)
_REPEATS = 7
_SLOW_MS = 200.0  # a pass this slow is measured twice, not seven times


def calibrate(target: ModelRunner, draft: ModelRunner | None) -> Costs:
    """Time the passes that a round is made of; the engine's own rounds correct it from then on."""
    widths = [w for w in _WIDTHS if target.fixed_width is None or w <= target.fixed_width]
    costs = Costs()
    costs.seed(
        pass_ms(draft, 1) if draft is not None else None,
        {width: pass_ms(target, width) for width in widths},
        draft_read_ms=_reading_ms(draft) if draft is not None else None,
        row_ms=_row_ms(target),
    )
    return costs


@torch.inference_mode()
def pass_ms(runner: ModelRunner, width: int, sequences: int = 1) -> float:
    """Median time of a pass of ``width`` tokens for each of so many sequences, in ms."""
    size = min(_CONTEXT, runner.context_length - width)
    caches = [runner.new_cache() for _ in range(sequences)]
    step = runner.fixed_width or max(1, size)
    for cache in caches:
        while cache.length < size:
            count = min(step, size - cache.length)
            runner.forward([ForwardInput(_tokens(runner, count), cache)])
    tokens = _tokens(runner, width)

    def once() -> None:
        lengths = [cache.length for cache in caches]
        rows = runner.forward([ForwardInput(tokens, cache, keep=width) for cache in caches])
        rows[0][-1, 0].item()  # wait for the device
        for cache, length in zip(caches, lengths, strict=True):
            cache.rollback_to(length)

    return _median_ms(once)


def _reading_ms(draft: ModelRunner) -> float:
    """Each further token of a long pass."""
    long = 64
    return max(0.0, (pass_ms(draft, long) - pass_ms(draft, 1)) / (long - 1))


def _row_ms(target: ModelRunner) -> float:
    """What a second sequence adds to a pass, beyond its tokens."""
    return max(0.0, pass_ms(target, 1, sequences=2) - pass_ms(target, 2))


def _tokens(runner: ModelRunner, count: int) -> torch.Tensor:
    return torch.arange(count, device=runner.device) % runner.model_vocab_size


def _median_ms(work: Callable[[], None]) -> float:
    work()
    spans: list[float] = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        work()
        spans.append((time.perf_counter() - start) * 1e3)
        if len(spans) > 1 and spans[-1] > _SLOW_MS:
            break
    return statistics.median(spans)
