"""Checks whether a token's logits depend on what else is in its pass: in any bit, or beyond rounding.

Native code's don't depend on it at any width. Other kernels sum in an order that depends on the shapes
and, at some widths, on a row's place in the pass. For them a fixed width is found by trial, on the
model, dtype, device and thread count that will be used.

Some quantisation schemes choose one scale for all tokens of a pass. A token's distribution in a
verification pass then differs from that in a pass of its own, and the streamed text follows neither.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specstream.config import EngineConfig
from specstream.errors import ConfigError, ModelUnsupported
from specstream.model.agreement import trial_tokens
from specstream.model.runner import ModelRunner
from specstream.model.selfcheck import ordinary_ids, read_in_parts

__all__ = ["check_widths", "find_fixed_width", "rows_alike"]

_WIDTHS = (8, 16, 32, 64)
_PATTERNS = ((1,), (5, 3), (2, 7, 1))

_TOKENS, _READ = 12, 4  # tokens compared; tokens read per wider pass, with as many behind them
# Largest allowed mean total variation: between passes of one width with other neighbouring tokens, which
# change nothing if each token is computed independently; and between passes of different widths, whose
# kernels round in other ways (0.02 for unquantised models in bfloat16).
_BY_NEIGHBOURS, _BY_WIDTHS = 0.005, 0.06


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
    other = "bfloat16" if model.dtype is torch.float32 else "float32"
    raise ConfigError(
        f"the reproducible mode doesn't work here: at no pass width of {_WIDTHS} are this model's "
        f"logits in {model.dtype} the same to the last bit; try dtype {other}, or another device"
    )


@torch.inference_mode()
def rows_alike(runner: ModelRunner, tokens: int) -> tuple[int, int]:
    """Return how many of ``tokens`` rows of logits are bitwise equal in every grouping, and ``tokens``.

    A random text is read in full passes, then in passes of a few of its tokens followed by random ones,
    which are rolled back like rejected drafts.
    """
    width = runner.fixed_width or _WIDTHS[0]
    generator, high = torch.Generator().manual_seed(0), _vocabulary(runner)
    text = torch.randint(high, (tokens,), generator=generator).to(runner.device)
    junk = torch.randint(high, (width // 2,), generator=generator).to(runner.device)
    wanted = read_in_parts(runner, text, (width,), junk)
    same = torch.ones(tokens, dtype=torch.bool, device=runner.device)
    for pattern in _PATTERNS:
        same &= (read_in_parts(runner, text, pattern, junk) == wanted).all(-1)
    return int(same.sum()), tokens


@torch.inference_mode()
def check_widths(
    name: str, runner: ModelRunner, tokenizer: PreTrainedTokenizerBase, scheme: str
) -> None:
    """Compare next-token distributions of a few tokens, each alone and with others in wider passes.

    Args:
        name: The model's name, for errors.
        runner: Runs the quantised model.
        tokenizer: The model's.
        scheme: The scheme's name, for errors.

    Raises:
        ModelUnsupported: the distributions differ by more than rounding.
    """
    device, count = runner.device, runner.model_vocab_size
    ids = torch.tensor(ordinary_ids(tokenizer, count, _TOKENS), device=device)

    def distributions(size: int, behind: Tensor) -> Tensor:
        return read_in_parts(runner, ids, [size], behind).float().softmax(-1)

    def variation(found: Tensor) -> float:
        return float((found - wide).abs().sum(-1).mean()) / 2

    wide = distributions(_READ, ids[:_READ])
    others = trial_tokens(_READ, _vocabulary(runner), device)
    by_neighbours = variation(distributions(_READ, others))
    by_widths = variation(distributions(1, ids[:0]))
    if by_neighbours > _BY_NEIGHBOURS or by_widths > _BY_WIDTHS:
        raise ModelUnsupported(
            f"{name}: with weights in {scheme}, a token's distribution depends on what else is in its "
            f"pass (by {max(by_neighbours, by_widths):.2g} in total variation), so verified text would "
            "not be the model's; choose another scheme, or allow it by --allow-width-dependent "
            "(allow_width_dependent in a config)"
        )


def _vocabulary(runner: ModelRunner) -> int:
    """The number of tokens that the model both reads and gives logits of."""
    return min(runner.vocab_size, runner.model_vocab_size)
