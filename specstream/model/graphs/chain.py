"""Several greedy steps of a draft, without the host: each step reads the token of the step before."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["greedy_steps"]


def greedy_steps(
    tokens: Tensor, steps: int, logits_after: Callable[[Tensor, int], Tensor]
) -> tuple[Tensor, Tensor]:
    """Return ``steps`` greedy choices after ``tokens [n]``, and their probabilities: ``[steps]`` each.

    ``logits_after(tokens, step)`` reads tokens and returns the last one's logits, ``[V]`` float32. It is
    called with ``tokens`` in step 0, then with each choice but the last.
    """
    chosen, confidences = [], []
    for step in range(steps):
        logits = logits_after(tokens, step)
        top, token = logits.max(-1)
        chosen.append(token)
        confidences.append(torch.exp(logits - top).sum(-1).reciprocal())
        tokens = token.reshape(1)
    return torch.stack(chosen), torch.stack(confidences)
