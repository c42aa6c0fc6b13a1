"""Compares logits, up to rounding: a decoder's with those of the transformers model that it replaces."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

__all__ = ["agrees", "off_by", "rounding", "trial_tokens"]

_log = logging.getLogger("specstream.model")


def trial_tokens(count: int, vocab_size: int, device: torch.device) -> Tensor:
    """Return ``[count]`` token ids for a trial pass, spread evenly over the vocabulary.

    The lowest ids are avoided: they are often control tokens, whose embeddings are unlike those of text
    and whose hidden states are so large that rounding alone shows in the logits.
    """
    spread = torch.arange(1, count + 1, device=device) * vocab_size // (count + 1)
    return spread.clamp_max(vocab_size - 1)


def off_by(found: Tensor, wanted: Tensor) -> float:
    """The largest difference of logits, relative to the largest wanted one (at least 1); inf for NaN.

    Tokens whose wanted logit isn't finite don't count.
    """
    finite = wanted.isfinite()
    found, wanted = found.float().where(finite, 0.0), wanted.float().where(finite, 0.0)
    off = (found - wanted).abs().amax() / wanted.abs().amax().clamp_min(1.0)
    return float(off.nan_to_num(torch.inf))


def rounding(dtype: torch.dtype) -> float:
    """The largest `off_by` that sums in another order may cause: 64 units in the last place."""
    return 64 * torch.finfo(dtype).eps


@torch.inference_mode()
def agrees(model: PreTrainedModel, logits_of: Callable[[Tensor], Tensor], *, native: bool) -> bool:
    """Return whether a decoder's logits of eight trial tokens equal the model's, up to rounding.

    Logs a warning if they differ. NaN logits of the model itself also return False, without a warning.

    Args:
        model: The reference, run through its own forward.
        logits_of: The decoder: logits ``[n, V]`` of tokens ``[n]``.
        native: Whether native code runs the decoder's passes; chooses the words of the warning.
    """
    tokens = trial_tokens(8, model.config.get_text_config().vocab_size, model.device)
    wanted = model(input_ids=tokens.unsqueeze(0), use_cache=False).logits[0].float()
    if bool(wanted.isnan().any()):
        return False  # damaged weights: reported by `check_decoding`
    off = off_by(logits_of(tokens), wanted)
    if off <= rounding(model.dtype):
        return True
    words = "native code's logits of %s are off by %.3g of the largest; torch runs its passes"
    if not native:
        words = "the decoder's logits of %s are off by %.3g of the largest; its own is used"
    _log.warning(words, type(model).__name__, off)
    return False
