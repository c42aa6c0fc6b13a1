"""Gumbel-max sampling with noise that is keyed by (seed, absolute position, token).

Position t is drawn as argmax(log p + G_t); G_t depends on the seed and on t only. So a reply is a
function of the seed and the target: no draft and no other request can change it. Shared between
draft and target, it is the drafter-invariant coupling of Daliri, Musco and Suresh 2024.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["gumbel", "gumbel_max"]

_GOLDEN = -7046029254386353131  # 2**64 / golden ratio, as a signed integer
_MIX = (-4658895280553007687, -7723592293110705685)  # SplitMix64 (Steele, Lea and Flood 2014)


def gumbel(seed: int, positions: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise, ``[N, vocab_size]`` float64, for ``positions [N]`` int64.

    A counter-based generator in integer arithmetic: the same bits on every device, in any order,
    for any subset of positions. Each value has 52 random bits.
    """
    tokens = torch.arange(vocab_size, device=positions.device)
    # The seed is mixed first, so that neighbouring seeds and positions share no structure.
    start = torch.full((), seed, dtype=torch.int64, device=positions.device)
    key = _mix(_mix(start + _GOLDEN) + positions * _GOLDEN)
    bits = _mix(key.unsqueeze(-1) + (tokens + 1) * _GOLDEN)
    uniform = ((bits >> 12) & (2**52 - 1)).double().add_(0.5).mul_(2.0**-52)  # in (0, 1)
    return uniform.log_().neg_().log_().neg_()


def gumbel_max(probs: Tensor, seed: int, first: int) -> Tensor:
    """Tokens ``[N]`` drawn from ``probs [N, V]`` for positions ``first``, ``first + 1`` and so on."""
    positions = torch.arange(first, first + probs.shape[0], device=probs.device)
    return (probs.double().log() + gumbel(seed, positions, probs.shape[-1])).argmax(-1)


def _mix(value: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64 (two's complement: multiplication wraps as unsigned would)."""
    value = (value ^ _shift(value, 30)) * _MIX[0]
    value = (value ^ _shift(value, 27)) * _MIX[1]
    return value ^ _shift(value, 31)


def _shift(value: Tensor, bits: int) -> Tensor:
    """Logical right shift; that of torch keeps the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
