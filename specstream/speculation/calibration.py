"""What a draft step and a target pass cost here: a short measurement when an engine is built."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from specstream.model.forward import ForwardInput
from specstream.model.runner import ModelRunner
from specstream.speculation.policy.costs import Costs, DraftCosts

__all__ = ["calibrate"]

_CONTEXT = 128
_WIDTHS = (1, 2, 6, 9)  # native passes take six tokens for little more than the time of one
_LONG = 64  # tokens of a pass that reads
_REPEATS = 7
_ENOUGH_S = 0.6  # so long is measured; each pass twice at least


def calibrate(
    target: ModelRunner,
    draft: ModelRunner | None,
    others: Mapping[str, Callable[[], None]] | None = None,
) -> Costs:
    """Time the passes that a round is made of; the engine's own rounds correct it from then on.

    ``others``: by candidate, one draft pass of a method that drafts without a model of its own.

    The draft is timed as a round runs it, right behind the target: whatever the target reads drives
    the draft's weights out of the caches, and a draft timed alone looks a good deal faster.
    """
    main = _Bench(target)
    widest = min(target.fixed_width or max(_WIDTHS), main.room)
    widths = [width for width in _WIDTHS if width <= widest]
    pair = _Bench(target, sequences=2)
    *alone, pair_ms = _least_ms([*(partial(main.run, w) for w in widths), lambda: pair.run(1)])
    passes = dict(zip(widths, alone, strict=True))
    row_ms = pair_ms - passes[2] if widest > 1 else None
    costs = Costs(passes, row_ms=None if row_ms is None else max(0.0, row_ms))
    if draft is not None:
        side = _Bench(draft)
        long = min(_LONG, side.room)
        both = [lambda: side.run(1), lambda: side.run(long)]
        step_ms, long_ms = _least_ms(both, before=lambda: main.run(1))
        read_ms = max(0.0, (long_ms - step_ms) / (long - 1))
        costs.drafts["draft"] = DraftCosts(step_ms, read_ms=read_ms)
    for name, work in (others or {}).items():
        (step_ms,) = _least_ms([work], before=lambda: main.run(1))
        costs.drafts[name] = DraftCosts(step_ms)
    return costs


class _Bench:
    """A model with some context, whose passes can be repeated; the widest one may be ``room`` wide."""

    def __init__(self, runner: ModelRunner, sequences: int = 1) -> None:
        self._runner = runner
        self._caches = [runner.new_cache() for _ in range(sequences)]
        context = max(1, min(_CONTEXT, runner.context_length - _LONG))
        self.room = max(2, runner.context_length - context)
        for start in range(0, context, runner.fixed_width or context):
            count = min(runner.fixed_width or context, context - start)
            self._forward(count)

    def run(self, width: int) -> None:
        """One pass of ``width`` tokens a sequence, waited for, and taken back."""
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
    """The least time of each, taken in turn: what the machine does meanwhile befalls them alike."""
    for work in works:
        work()
    least, began = [math.inf] * len(works), time.perf_counter()
    for repeat in range(_REPEATS):
        for index, work in enumerate(works):
            if before is not None:
                before()
            start = time.perf_counter()
            work()
            # Noise only adds: on a busy machine the least is nearest to the truth.
            least[index] = min(least[index], (time.perf_counter() - start) * 1e3)
        if repeat > 0 and time.perf_counter() > began + _ENOUGH_S:
            break
    return least
