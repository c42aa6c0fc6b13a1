"""Refuses a quantised target whose logits depend on how many tokens a pass reads.

A scheme that chooses one scale for all tokens of a pass gives a verified token another distribution than
the same token would have alone: what is then streamed follows no one model's distribution.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specstream.errors import ModelUnsupported
from specstream.model.agreement import trial_tokens
from specstream.model.forward import ForwardInput
from specstream.model.runner import ModelRunner
from specstream.model.selfcheck import ordinary_ids

__all__ = ["check_widths", "loaded_scheme", "width_distances"]

_TOKENS, _READ = 12, 4
# Bounds in total variation. In a pass of one width, other neighbours change nothing where each token is
# computed for itself. Between widths kernels round otherwise: .02 for plain models in bfloat16.
_NEIGHBOURS, _WIDTHS = 0.005, 0.06


def loaded_scheme(model: PreTrainedModel) -> str | None:
    """The scheme in which transformers has loaded the model's weights; None: they are not quantised."""
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
        ModelUnsupported: they differ by more than rounding.
    """
    ids = torch.tensor(ordinary_ids(tokenizer, runner.model_vocab_size, _TOKENS))
    neighbours, widths = width_distances(runner, ids.to(runner.device))
    if neighbours > _NEIGHBOURS or widths > _WIDTHS:
        raise ModelUnsupported(
            f"{name}: with weights in {scheme}, a token's distribution depends on what else is in its "
            f"pass (by {max(neighbours, widths):.2g} in total variation), so verified text would not be "
            "the model's; choose another scheme, or allow it by --allow-width-dependent "
            "(allow_width_dependent in a config)"
        )


@torch.inference_mode()
def width_distances(runner: ModelRunner, ids: Tensor) -> tuple[float, float]:
    """How far next-token distributions behind ``ids [n]`` are apart, mean total variation.

    Between passes of one width with two kinds of other tokens, and between passes of one token and
    wider ones.
    """
    high = min(runner.vocab_size, runner.model_vocab_size)
    spread = trial_tokens(_READ, high, ids.device)
    wide = _distributions(runner, ids, _READ, ids[:_READ])
    other = _distributions(runner, ids, _READ, spread)
    alone = _distributions(runner, ids, 1, ids[:0])
    return _apart(wide, other), _apart(wide, alone)


def _distributions(runner: ModelRunner, ids: Tensor, count: int, behind: Tensor) -> Tensor:
    """``[n, V]`` float32, of ``ids`` read by ``count``; those behind are rolled back each time."""
    cache, rows = runner.new_cache(), list[Tensor]()
    for at in range(0, ids.shape[0], count):
        part = ids[at : at + count]
        tokens = torch.cat([part, behind])
        (logits,) = runner.forward([ForwardInput(tokens, cache, keep=tokens.shape[0])]).logits
        cache.rollback_to(cache.length - behind.shape[0])
        rows.append(logits[: part.shape[0]])
    return torch.cat(rows).float().softmax(-1)


def _apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().sum(-1).mean()) / 2
