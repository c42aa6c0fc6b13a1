"""Whether a decoder computes what its model computes."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

__all__ = ["agrees", "trial_tokens"]

_log = logging.getLogger("specstream.model")


def trial_tokens(count: int, vocab_size: int, device: torch.device) -> Tensor:
    """``[count]`` ids to try a model with, spread over its vocabulary.

    The first ids are often control tokens, whose embeddings are unlike those of text and whose states
    are so large that rounding alone shows in the logits.
    """
    spread = torch.arange(1, count + 1, device=device) * vocab_size // (count + 1)
    return spread.clamp_max(vocab_size - 1)


@torch.inference_mode()
def agrees(model: PreTrainedModel, logits_of: Callable[[Tensor], Tensor], *, native: bool) -> bool:
    """Compare the logits of a few tokens; if they differ by more than rounding, a warning says so.

    Args:
        model: By its own forward.
        logits_of: The decoder's, ``[n, V]`` of tokens ``[n]``.
        native: Whether native code computes them.
    """
    tokens = trial_tokens(8, model.config.get_text_config().vocab_size, model.device)
    wanted = model(input_ids=tokens.unsqueeze(0), use_cache=False).logits[0].float()
    if bool(wanted.isnan().any()):
        return False  # damaged weights: reported by `check_decoding`
    off = (logits_of(tokens).float() - wanted).abs().amax()
    # 64 units in the last place of the largest logit: sums in another order, but the same sums.
    allowed = 64 * torch.finfo(model.dtype).eps * wanted.abs().amax().clamp_min(1.0)
    if bool(off <= allowed):
        return True
    whose = (
        ("native code's", "torch runs its passes")
        if native
        else ("the decoder's", "its own is used")
    )
    _log.warning(
        "%s logits of %s are off by %.3g; %s", whose[0], type(model).__name__, float(off), whose[1]
    )
    return False
