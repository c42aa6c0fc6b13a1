"""Runs the first pass of each shape in advance: first passes are slow, as kernels are prepared."""

from __future__ import annotations

import time

import torch

from specstream.model.forward import ForwardInput
from specstream.model.products import ROUNDED
from specstream.model.runner import ModelRunner

__all__ = ["warm_up"]

_MOST_S = 1.0  # seconds after which no further optional shape is begun


@torch.inference_mode()
def warm_up(runner: ModelRunner) -> None:
    """Run passes with the shapes of a prompt and of a round once.

    With packed matrices also run passes of the other numbers of rows that have their own kernels, for
    about a second.
    """
    began, cache = time.perf_counter(), runner.new_cache()
    needed = [runner.fixed_width] if runner.fixed_width else [16, 5, 1]
    useful: list[int] = []
    if runner.lean and runner.decoder.packed and not runner.fixed_width:
        useful = [width for width in ROUNDED if width <= runner.context_length]
    for number, width in enumerate(needed + useful):
        if number >= len(needed) and time.perf_counter() - began > _MOST_S:
            break
        tokens = torch.zeros(width, dtype=torch.int64, device=runner.device)
        runner.forward([ForwardInput(tokens, cache)])
        cache.rollback_to(0)
    runner.forwards = 0
