"""Losses of a draft distribution q against the target's p, token by token."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["distance"]

_FLOOR = 1e-6  # least acceptance in the logarithm, which keeps it finite


def distance(
    draft_logits: Tensor, target_log_p: Tensor, acceptance: float
) -> tuple[Tensor, Tensor]:
    """Return loss ``[n]`` and acceptance probability ``[n]`` (no gradient) of n draft distributions.

    The loss is a weighted sum of KL(p || q) and of the likelihood-of-acceptance loss -log sum min(p, q),
    which training minimises in expectation (LK losses, arXiv 2602.23881).

    Args:
        draft_logits: ``[n, V]`` over the draft's vocabulary.
        target_log_p: ``[n, V]``: the target's log probabilities of the same tokens, whose sum may be
            below 1 where the draft's vocabulary is a part of the target's. No gradient flows into them.
        acceptance: Weight of the acceptance loss, from 0 to 1.
    """
    log_q, log_p = draft_logits.float().log_softmax(-1), target_log_p.detach().float()
    p = log_p.exp()
    overlap = torch.minimum(p, log_q.exp()).sum(-1)
    loss = torch.zeros_like(overlap)
    if acceptance < 1.0:
        loss = loss + (1.0 - acceptance) * (p * (log_p - log_q)).sum(-1)
    if acceptance > 0.0:
        loss = loss - acceptance * overlap.clamp_min(_FLOOR).log()
    return loss, overlap.detach()
