"""Checks that a decoder's logits equal those of the transformers model that it replaces."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

__all__ = ["agrees", "trial_tokens"]

_log = logging.getLogger("specstream.model")


def trial_tokens(count: int, vocab_size: int, device: torch.device) -> Tensor:
    """Return ``[count]`` token ids for a trial pass, spread evenly over the vocabulary.

    The lowest ids are avoided: they are often control tokens, whose embeddings are unlike those of text
    and whose hidden states are so large that rounding alone shows in the logits.
    """
    spread = torch.arange(1, count + 1, device=device) * vocab_size // (count + 1)
    return spread.clamp_max(vocab_size - 1)


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
    off = (logits_of(tokens).float() - wanted).abs().amax()
    # 64 units in the last place of the largest logit: room for another order of summation.
    allowed = 64 * torch.finfo(model.dtype).eps * wanted.abs().amax().clamp_min(1.0)
    if bool(off <= allowed):
        return True
    words = "native code's logits of %s are off by %.3g; torch runs its passes"
    if not native:
        words = "the decoder's logits of %s are off by %.3g; its own is used"
    _log.warning(words, type(model).__name__, float(off))
    return False
