"""Refuses a quantised target whose logits depend on how many tokens a pass reads.

If a scheme chooses one scale for all tokens of a pass, a token's distribution in a verification pass
differs from that in a pass of its own. The streamed text then follows neither.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specstream.errors import ModelUnsupported
from specstream.model.agreement import trial_tokens
from specstream.model.runner import ModelRunner
from specstream.model.selfcheck import ordinary_ids, read_in_parts

__all__ = ["check_widths", "loaded_scheme"]

_TOKENS, _READ = 12, 4  # tokens compared; tokens read per wider pass, with as many behind them
# Largest allowed mean total variation: between passes of one width with other neighbouring tokens, which
# change nothing if each token is computed independently; and between passes of different widths, whose
# kernels round in other ways (0.02 for unquantised models in bfloat16).
_NEIGHBOURS, _WIDTHS = 0.005, 0.06


def loaded_scheme(model: PreTrainedModel) -> str | None:
    """Return the quantisation scheme of a loaded transformers model; None if it is not quantised."""
    quantizer = getattr(model, "hf_quantizer", None)
    method = getattr(getattr(quantizer, "quantization_config", None), "quant_method", None)
    return None if method is None else str(getattr(method, "value", method))


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
    ids = torch.tensor(ordinary_ids(tokenizer, runner.model_vocab_size, _TOKENS))
    neighbours, widths = _width_distances(runner, ids.to(runner.device))
    if neighbours > _NEIGHBOURS or widths > _WIDTHS:
        raise ModelUnsupported(
            f"{name}: with weights in {scheme}, a token's distribution depends on what else is in its "
            f"pass (by {max(neighbours, widths):.2g} in total variation), so verified text would not be "
            "the model's; choose another scheme, or allow it by --allow-width-dependent "
            "(allow_width_dependent in a config)"
        )


@torch.inference_mode()
def _width_distances(runner: ModelRunner, ids: Tensor) -> tuple[float, float]:
    """Return two mean total variations of the next-token distributions after each of ``ids [n]``.

    The first is between passes of one width with different neighbouring tokens, the second between
    passes of one token and wider ones.
    """

    def distributions(count: int, behind: Tensor) -> Tensor:
        return read_in_parts(runner, ids, [count], behind).float().softmax(-1)

    high = min(runner.vocab_size, runner.model_vocab_size)
    wide = distributions(_READ, ids[:_READ])
    neighbours = distributions(_READ, trial_tokens(_READ, high, ids.device)) - wide
    widths = distributions(1, ids[:0]) - wide
    return float(neighbours.abs().sum(-1).mean()) / 2, float(widths.abs().sum(-1).mean()) / 2
