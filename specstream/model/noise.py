"""Gumbel-max sampling with noise that is keyed by (seed, absolute position, token).

Position t is drawn as argmax(log p + G_t); G_t depends on the seed and on t only. So a reply is a
function of the seed and the target: no draft and no other request can change it. Shared between
draft and target, it is the drafter-invariant coupling of Daliri, Musco and Suresh 2024.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from specstream.model.native.sampling import native_gumbel_max

__all__ = ["gumbel", "gumbel_max"]

_GOLDEN = -7046029254386353131  # 2**64 / golden ratio, as a signed integer
_MIX = (-4658895280553007687, -7723592293110705685)  # SplitMix64 (Steele, Lea and Flood 2014)

_KEPT = 16
"""Rows of noise that are kept: a draft and all nodes of one depth of a tree need those of one position.

At 49,152 tokens a row takes 0.4 MB, and 1.5 ms to make; a pass of SmolLM2 takes 15.
"""


def gumbel(seed: int, positions: Tensor, tokens: int | Tensor) -> Tensor:
    """Standard Gumbel noise ``[N, n]`` float64 for ``positions [N]`` and ``tokens [n]``, both int64.

    In place of tokens may stand the size of the vocabulary, for all of them.

    A counter-based generator in integer arithmetic: the same bits on every device, in any order,
    for any subset of positions. Each value has 52 random bits.
    """
    if isinstance(tokens, int):
        tokens = torch.arange(tokens, device=positions.device)
    # The seed is mixed first, so that neighbouring seeds and positions share no structure.
    start = torch.full((), seed, dtype=torch.int64, device=positions.device)
    key = _mix(_mix(start + _GOLDEN) + positions * _GOLDEN)
    bits = _mix(key.unsqueeze(-1) + (tokens + 1) * _GOLDEN)
    uniform = ((bits >> 12) & (2**52 - 1)).double().add_(0.5).mul_(2.0**-52)  # in (0, 1)
    return uniform.log_().neg_().log_().neg_()


def gumbel_max(probs: Tensor, seed: int, first: int, ids: Tensor | None = None) -> Tensor:
    """Tokens ``[N]`` drawn from ``probs [N, V]`` for positions ``first``, ``first + 1`` and so on.

    With ``ids [n]`` int64, ``probs`` is ``[1, n]``, of these tokens only, and the index among them is
    returned.
    """
    count, width = probs.shape
    if count != 1:
        positions = torch.arange(first, first + count, device=probs.device)
        return (probs.double().log() + gumbel(seed, positions, width)).argmax(-1)
    if (index := native_gumbel_max(probs[0], ids, seed, first)) is not None:
        return torch.tensor([index])
    if ids is None:
        return (probs.double().log() + _row(seed, first, width, probs.device)).argmax(-1)
    return (probs.double().log() + _row(seed, first, ids, ids.device)).argmax(-1)


@lru_cache(_KEPT)
def _row(seed: int, position: int, tokens: int | Tensor, device: torch.device) -> Tensor:
    """``[1, n]``: one position's noise, for tokens as in `gumbel`; of the same tensor it is kept."""
    with torch.inference_mode(False):
        return gumbel(seed, torch.full((1,), position, dtype=torch.int64, device=device), tokens)


def _mix(value: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64 (two's complement: multiplication wraps as unsigned would)."""
    value = (value ^ _shift(value, 30)) * _MIX[0]
    value = (value ^ _shift(value, 27)) * _MIX[1]
    return value ^ _shift(value, 31)


def _shift(value: Tensor, bits: int) -> Tensor:
    """Logical right shift; that of torch keeps the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
