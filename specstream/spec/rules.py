"""Verification rules as laws: with what probability how many tokens stand, and what follows them.

A rule turns a proposal and the target's distributions into a `Law`; `specstream.spec.verify` draws
from it. Kept apart, the arithmetic can be enumerated exactly: summing a law over every proposal that
a draft can make must give back the target's own law, to the last digit.

Shapes: ``...`` are batch dimensions, K drafted tokens (padded), V the vocabulary. ``tokens [..., K]``
int64; ``draft [..., K, V]``: row j is what ``tokens[j]`` was drawn from; ``target [..., K + 1, V]``:
row j follows the first j tokens; ``lengths [...]`` int64: how many of the K are real (None: all).
Rows of draft and target are normalised.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Law", "block_law", "deterministic_law", "ratio_law"]


@dataclass(frozen=True, slots=True)
class Law:
    """What a rule does with a chain.

    Attributes:
        accepted: ``[..., K + 1]``, the probability that exactly n leading tokens stand.
        following: ``[..., K + 1, V]``, unnormalised: the law of the token after n standing ones.
            Where ``accepted`` is 0 the row may be anything, all zeros included.
    """

    accepted: Tensor
    following: Tensor


def ratio_law(tokens: Tensor, draft: Tensor, target: Tensor, lengths: Tensor | None = None) -> Law:
    """Token verification: keep x with probability min(1, p(x) / q(x)), else draw from max(p - q, 0).

    Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2.
    """
    keep = (
        _at(target[..., :-1, :], tokens) / _at(draft, tokens).clamp_min(_tiny(draft))
    ).clamp_max(1)
    residual = (target[..., :-1, :] - draft).clamp_min(0)
    return _chain(keep, residual, target, lengths)


def deterministic_law(tokens: Tensor, target: Tensor, lengths: Tensor | None = None) -> Law:
    """A point-mass draft: keep x with probability p(x), else draw from p without x.

    The ratio rule with q a point mass; also the law of drawing y from p and keeping x if it is y
    (exact match). Needs no q, so a draft that lies about it can do no harm.
    """
    keep = _at(target[..., :-1, :], tokens)
    residual = target[..., :-1, :].scatter(-1, tokens.unsqueeze(-1), 0)
    return _chain(keep, residual, target, lengths)


def block_law(tokens: Tensor, draft: Tensor, target: Tensor, lengths: Tensor | None = None) -> Law:
    """Block verification: judge the block as a whole; never accepts fewer on average than the ratio.

    Sun et al. 2025 (ICLR), algorithm 2. With w_0 = 1 and w_i = min(1, w_{i-1} p(x_i) / q(x_i)):
    n = max{i : eta_i <= h_i} for independent uniform eta_i, where h_i = R_i / (R_i + 1 - w_i) and
    R_i = sum max(w_i p - q, 0) for i < K, and h_K = w_K; then a draw from max(w_n p - q, 0).
    """
    count = tokens.shape[-1]
    ratio = _at(target[..., :-1, :], tokens) / _at(draft, tokens).clamp_min(_tiny(draft))
    real = _real(count, lengths, tokens)
    weights = [torch.ones_like(ratio[..., 0])] if count else [torch.ones_like(target[..., 0, 0])]
    for i in range(count):
        weights.append((weights[-1] * ratio[..., i]).clamp_max(1) * real[..., i])
    weight = torch.stack(weights, -1)
    residual = (weight[..., :-1, None] * target[..., :-1, :] - draft).clamp_min(0)
    mass = residual.sum(-1)
    share = mass / (mass + 1 - weight[..., :-1]).clamp_min(_tiny(mass))
    last = _is_last(count, lengths, tokens)
    step = torch.cat([share, weight[..., -1:]], -1)
    step = torch.where(last, weight, step)
    step = torch.where(_after_last(count, lengths, tokens), 0.0, step)
    step[..., 0] = 1.0  # eta_0 <= h_0 always: nothing is left to fall back to
    # n is the largest i whose step succeeds: read the steps from the end.
    missed = torch.cat([torch.ones_like(step[..., :1]), (1 - step).flip(-1)[..., :-1]], -1)
    accepted = step * missed.cumprod(-1).flip(-1)
    return Law(accepted, _with_bonus(residual, target, last))


def _chain(keep: Tensor, residual: Tensor, target: Tensor, lengths: Tensor | None) -> Law:
    """Independent tests in a row; the first that fails is followed by its residual."""
    count = keep.shape[-1]
    keep = keep * _real(count, lengths, keep)
    survived = torch.cat([torch.ones_like(target[..., :1, 0]), keep.cumprod(-1)], -1)
    ended = torch.cat([1 - keep, torch.ones_like(target[..., :1, 0])], -1)
    return Law(survived * ended, _with_bonus(residual, target, _is_last(count, lengths, keep)))


def _with_bonus(residual: Tensor, target: Tensor, last: Tensor) -> Tensor:
    """Residual rows, but the target's own row where all (real) tokens stand.

    Where p and q agree up to rounding the residual is empty while rejection keeps a probability of
    the same rounding; the target's row stands in, so that there is always something to draw.
    """
    rows = torch.cat([residual, target[..., -1:, :]], -2)
    empty = rows.sum(-1, keepdim=True) <= 0
    return torch.where(last.unsqueeze(-1) | empty, target, rows)


def _at(rows: Tensor, tokens: Tensor) -> Tensor:
    return rows.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def _tiny(like: Tensor) -> float:
    return torch.finfo(like.dtype).tiny


def _positions(count: int, like: Tensor) -> Tensor:
    return torch.arange(count + 1, device=like.device)


def _real(count: int, lengths: Tensor | None, like: Tensor) -> Tensor:
    if lengths is None:
        return torch.ones_like(like, dtype=torch.bool)
    return _positions(count, like)[:-1] < lengths.unsqueeze(-1)


def _is_last(count: int, lengths: Tensor | None, like: Tensor) -> Tensor:
    at = _positions(count, like)
    return at == (count if lengths is None else lengths.unsqueeze(-1))


def _after_last(count: int, lengths: Tensor | None, like: Tensor) -> Tensor:
    at = _positions(count, like)
    return at > (count if lengths is None else lengths.unsqueeze(-1))
