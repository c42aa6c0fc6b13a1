"""The judge: how many proposed tokens stand, and which token follows them. Pure functions.

Exactness rests on two things: the arithmetic here, and the callers' honesty about ``probs`` (the
distribution that each token was really drawn from). Both the accepted prefix and the token after it
together have exactly the law of sampling from the target one token at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specstream.model.sampling import draw, probabilities
from specstream.spec.proposal import Proposal, Verdict
from specstream.types import SamplingParams

__all__ = ["verify"]


def verify(
    proposal: Proposal,
    target_logits: Tensor,
    params: SamplingParams,
    generator: torch.Generator,
) -> Verdict:
    """Judge a chain.

    Args:
        proposal: K tokens and, unless they are deterministic, their ``probs [K, V]``.
        target_logits: ``[K + 1, V]``; row j was computed with the first j proposed tokens in place.
        params: How the target's distribution is made from its logits.
        generator: The judge's noise, independent of the draft's, on the logits' device.

    Returns:
        The verdict; one transfer from the device.

    Raises:
        ValueError: the shapes don't fit together.
    """
    count = proposal.length
    if target_logits.ndim != 2 or target_logits.shape[0] != count + 1:
        raise ValueError(f"{count} tokens need {count + 1} rows, not {tuple(target_logits.shape)}")
    if params.greedy:
        choices = target_logits.argmax(-1)
        stands = choices[:count] == proposal.tokens
    else:
        target = probabilities(target_logits, params)
        if proposal.probs is None:
            stands, choices = _judge_deterministic(proposal.tokens, target, generator)
        else:
            stands, choices = _judge_sampled(proposal.tokens, proposal.probs, target, generator)
    accepted_at = stands.int().cumprod(0).sum().reshape(1)
    accepted, *options = torch.cat([accepted_at, choices]).tolist()
    return Verdict(accepted, options[accepted], tuple(range(accepted)))


def _judge_deterministic(
    tokens: Tensor, target: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """A point-mass draft: draw y from the target; the token stands if it is y, else y replaces it.

    Accepting x with probability p(x) and otherwise drawing from p without x has the same law
    (Leviathan et al. 2023, section 2.3, with q a point mass).
    """
    choices = draw(target, generator)
    return choices[: tokens.shape[0]] == tokens, choices


def _judge_sampled(
    tokens: Tensor, draft: Tensor, target: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The ratio test: keep x with probability min(1, p(x) / q(x)), else draw from max(p - q, 0).

    Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2. ``choices[j]`` is what follows
    if token j is the first to be rejected; ``choices[K]`` is the bonus.
    """
    count = tokens.shape[0]
    if draft.shape != (count, target.shape[-1]):
        raise ValueError(f"probs must be {(count, target.shape[-1])}, not {tuple(draft.shape)}")
    at = tokens.unsqueeze(-1)
    p, q = target[:count].gather(-1, at).squeeze(-1), draft.gather(-1, at).squeeze(-1)
    uniform = torch.rand(count, generator=generator, device=target.device)
    stands = uniform * q < p
    residual = (target[:count] - draft).clamp_min(0.0)
    # Where p and q are equal up to rounding, rejection has probability ~0 and any law will do; the
    # target's own keeps the weights from being all zero.
    empty = residual.sum(-1, keepdim=True) == 0
    residual = torch.where(empty, target[:count], residual)
    choices = draw(torch.cat([residual, target[count:]]), generator)
    return stands, choices
