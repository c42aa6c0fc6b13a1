"""Finds a pass width at which a token's logits don't depend, to the last bit, on the pass's other rows.

Native code has this property at any width. Other kernels sum in an order that depends on the shapes and,
at some widths, on a row's place in the pass. For them a fixed width is found by trial, on the model,
dtype, device and thread count that will be used.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from specstream.config import EngineConfig
from specstream.errors import ConfigError
from specstream.model.runner import ModelRunner
from specstream.model.selfcheck import read_in_parts

__all__ = ["find_fixed_width", "rows_alike"]

_WIDTHS = (8, 16, 32, 64)
_PATTERNS: tuple[Sequence[int], ...] = ((1,), (5, 3), (2, 7, 1))


def find_fixed_width(model: PreTrainedModel, config: EngineConfig) -> int:
    """Return the smallest pass width at which a token has the same logits, bit for bit, in every row.

    Raises:
        ConfigError: no width passes the trial; the reproducible mode doesn't work on this device.
    """
    for width in _WIDTHS:
        runner = ModelRunner(model, fixed_width=width, context_length=config.context_length)
        same, total = rows_alike(runner, tokens=2 * width)
        if same == total:
            return width
    raise ConfigError(
        f"the reproducible mode doesn't work here: at no pass width of {_WIDTHS} are this model's "
        f"logits in {model.dtype} the same to the last bit; try dtype float32, or another device"
    )


@torch.inference_mode()
def rows_alike(runner: ModelRunner, tokens: int, seed: int = 0) -> tuple[int, int]:
    """Return how many of ``tokens`` rows of logits are bitwise equal in every grouping, and ``tokens``.

    A random text is read in full passes, then in passes of a few of its tokens followed by random ones,
    which are rolled back like rejected drafts.
    """
    width = runner.fixed_width or _WIDTHS[0]
    generator = torch.Generator().manual_seed(seed)
    high = min(runner.vocab_size, runner.model_vocab_size)
    text = torch.randint(high, (tokens,), generator=generator).to(runner.device)
    junk = torch.randint(high, (width // 2,), generator=generator).to(runner.device)
    wanted = read_in_parts(runner, text, (width,), junk)
    same = torch.ones(tokens, dtype=torch.bool, device=runner.device)
    for pattern in _PATTERNS:
        same &= (read_in_parts(runner, text, pattern, junk) == wanted).all(-1)
    return int(same.sum()), tokens
