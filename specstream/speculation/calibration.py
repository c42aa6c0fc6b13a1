"""A short measurement of draft steps and target passes on this machine, made when an engine is built."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache as once
from functools import partial
from typing import cast

import torch

from specstream.model.forward import ForwardInput
from specstream.model.kv.base import RowCache
from specstream.model.runner import ModelRunner
from specstream.speculation.measured import FRESH, MeasuredTimes
from specstream.speculation.policy.costs import Costs, DraftCosts

__all__ = ["CONTEXT", "calibrate", "pass_ms"]

CONTEXT = 128
"""Cached rows behind which passes are timed, those of drafting heads as well."""

# Tokens of the timed target passes: native passes read six tokens in little more than the time of one.
_WIDTHS = (1, 2, 6, 9)
_READ_WIDTH = 64  # tokens of the draft pass that measures the cost of reading a prompt
_REPEATS = 7  # measurements of each pass, at most
_BUDGET_S = 0.6  # seconds after which no measurement is repeated; each is made twice at least


def calibrate(
    target: ModelRunner,
    draft: ModelRunner | None,
    others: Mapping[str, Callable[[], None]] | None = None,
    times: MeasuredTimes = FRESH,
) -> Costs:
    """Time the passes that rounds consist of, as initial costs; the engine's rounds refine them.

    Draft passes are timed as in a round, right after a target pass: the target's weights displace the
    draft's from the CPU's caches, and a draft that is timed alone looks a good deal faster.

    Args:
        target: The target model.
        draft: The draft model, if there is one.
        others: By candidate, a function that makes one draft pass of a method without its own model.
        times: What earlier starts have measured.
    """
    widest = min(target.fixed_width or max(_WIDTHS), _room(target))
    widths = [width for width in _WIDTHS if width <= widest]
    main = once(lambda: _Bench(target))

    def target_ms() -> list[float]:
        pair = _Bench(target, sequences=2)
        return _least_ms([*(partial(main().run, w) for w in widths), lambda: pair.run(1)])

    def draft_ms(*works: Callable[[], None]) -> list[float]:
        return _least_ms(works, before=lambda: main().run(1))

    *alone, pair_ms = times.of("target", len(widths) + 1, target_ms)
    passes = dict(zip(widths, alone, strict=True))
    row_ms = pair_ms - passes[2] if widest > 1 else None
    costs = Costs(passes, row_ms=None if row_ms is None else max(0.0, row_ms))
    if draft is not None:
        side, long = once(lambda: _Bench(draft)), min(_READ_WIDTH, _room(draft))
        both = [lambda: side().run(1), lambda: side().run(long)]
        step_ms, long_ms = times.of("draft", 2, lambda: draft_ms(*both))
        read_ms = max(0.0, (long_ms - step_ms) / (long - 1))
        costs.drafts["draft"] = DraftCosts(step_ms, read_ms=read_ms)
    for name, work in (others or {}).items():
        (step_ms,) = times.of(f"draft {name}", 1, partial(draft_ms, work))
        costs.drafts[name] = DraftCosts(step_ms)
    return costs


def pass_ms(runner: ModelRunner, counts: Sequence[int]) -> list[float]:
    """Milliseconds of passes over one token of each of so many sequences, behind `CONTEXT` rows.

    Timed in turn; the rows are not computed, since their values don't change the time.
    """
    caches = [cast(RowCache, runner.new_cache()) for _ in range(max(counts))]
    context = min(CONTEXT, runner.context_length - 1)
    for cache in caches:
        cache.reserve(context + 1)
        cache.append_to(context)
    token = torch.zeros(1, dtype=torch.int64, device=runner.device)

    @torch.inference_mode()
    def run(count: int) -> None:
        inputs = [ForwardInput(token, cache) for cache in caches[:count]]
        runner.forward(inputs).logits[0][0, 0].item()  # wait for the device
        for cache in caches[:count]:
            cache.rollback_to(context)

    found = _least_ms([partial(run, count) for count in counts])
    runner.forwards = 0
    return found


def _context(runner: ModelRunner) -> int:
    """Cached rows behind which passes are timed: fewer than `CONTEXT` where the model's own is short."""
    return max(1, min(CONTEXT, runner.context_length - _READ_WIDTH))


def _room(runner: ModelRunner) -> int:
    """The most tokens of a timed pass."""
    return max(2, runner.context_length - _context(runner))


class _Bench:
    """A model with some context, whose passes can be repeated."""

    def __init__(self, runner: ModelRunner, sequences: int = 1) -> None:
        self._runner = runner
        self._caches = [runner.new_cache() for _ in range(sequences)]
        context = _context(runner)
        for start in range(0, context, runner.fixed_width or context):
            count = min(runner.fixed_width or context, context - start)
            self._forward(count)

    def run(self, width: int) -> None:
        """Run a pass of ``width`` tokens a sequence, wait for the device, and roll the caches back."""
        lengths = [cache.length for cache in self._caches]
        self._forward(width)
        for cache, length in zip(self._caches, lengths, strict=True):
            cache.rollback_to(length)

    @torch.inference_mode()
    def _forward(self, count: int) -> None:
        runner = self._runner
        tokens = torch.arange(count, device=runner.device) % runner.model_vocab_size
        rows = runner.forward([ForwardInput(tokens, cache) for cache in self._caches]).logits
        rows[0][0, 0].item()  # wait for the device


def _least_ms(
    works: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
) -> list[float]:
    """The least time of each, in ms; measured in turn, so that other load on the machine affects all."""
    for work in works:
        work()
    least, began = [math.inf] * len(works), time.perf_counter()
    for repeat in range(_REPEATS):
        for index, work in enumerate(works):
            if before is not None:
                before()
            start = time.perf_counter()
            work()
            # Other load only adds time, so the least time is nearest to the true cost.
            least[index] = min(least[index], (time.perf_counter() - start) * 1e3)
        if repeat > 0 and time.perf_counter() > began + _BUDGET_S:
            break
    return least
