"""Several greedy steps of a draft: each step reads the token that the last one chose."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["greedy_steps"]


def greedy_steps(
    tokens: Tensor, steps: int, logits_after: Callable[[Tensor, int], Tensor]
) -> tuple[Tensor, Tensor]:
    """Choose ``tokens [steps]``, each the likeliest after those before, and their probabilities.

    ``logits_after(tokens [n], step)`` reads n tokens and returns the last one's logits, ``[V]`` float32:
    first of ``tokens``, then of each choice but the last.
    """
    chosen, confidences = [], []
    for step in range(steps):
        logits = logits_after(tokens, step)
        top, token = logits.max(-1)
        chosen.append(token)
        confidences.append(torch.exp(logits - top).sum(-1).reciprocal())
        tokens = token.reshape(1)
    return torch.stack(chosen), torch.stack(confidences)
