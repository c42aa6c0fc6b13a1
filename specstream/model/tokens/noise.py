"""Gumbel-max sampling with noise that is keyed by (seed, absolute position, token).

The token at position t is argmax(log p + G_t), where G_t depends on the seed and on t only. So a reply
depends on the seed and the target alone, not on the draft or on other requests. Draft and target use the
same noise: this is the drafter-invariant coupling of Daliri, Musco and Suresh 2024.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from specstream.model.native.sampling import native_gumbel_max

__all__ = ["gumbel", "gumbel_max", "gumbel_max_of_rows", "gumbel_top", "noise_key"]

_GOLDEN = -7046029254386353131  # 2**64 / golden ratio, as a signed integer
_WORD = 2**64 - 1
_MIX = (-4658895280553007687, -7723592293110705685)  # SplitMix64 (Steele, Lea and Flood 2014)

_KEPT = 16
"""Rows of noise that are cached: the draft and all tree nodes of one depth need the same position's row.

For 49,152 tokens a row takes 0.4 MB, and making it 1.5 ms; a SmolLM2 forward takes 15 ms.
"""


def gumbel(seed: int, positions: Tensor, tokens: int | Tensor) -> Tensor:
    """Return standard Gumbel noise ``[N, n]`` float64 for int64 ``positions [N]`` and ``tokens [n]``.

    ``tokens`` may also be the size n of the vocabulary, which means all of its tokens.

    The generator is counter-based, in integer arithmetic: it gives the same bits on every device, in any
    order and for any subset of positions. Each value has 52 random bits.
    """
    # The seed is mixed first, so that neighbouring seeds and positions share no structure.
    start = torch.full((), seed, dtype=torch.int64, device=positions.device)
    return _from_keys(_mix(_mix(start + _GOLDEN) + positions * _GOLDEN), tokens)


def _from_keys(keys: Tensor, tokens: int | Tensor) -> Tensor:
    """Gumbel noise ``[N, n]`` float64 of positions with these ``keys [N]``; see `gumbel`."""
    if isinstance(tokens, int):
        tokens = torch.arange(tokens, device=keys.device)
    bits = _mix(keys.unsqueeze(-1) + (tokens + 1) * _GOLDEN)
    uniform = ((bits >> 12) & (2**52 - 1)).double().add_(0.5).mul_(2.0**-52)  # in (0, 1)
    return uniform.log_().neg_().log_().neg_()


def gumbel_max(probs: Tensor, seed: int, first: int, ids: Tensor | None = None) -> Tensor:
    """Draw tokens ``[N]`` from ``probs [N, V]`` for positions ``first``, ``first + 1`` and so on.

    With ``ids [n]`` int64, ``probs [1, n]`` are the probabilities of these tokens only, and the result
    is an index into ``ids``.
    """
    count, width = probs.shape
    if count != 1:
        positions = torch.arange(first, first + count, device=probs.device)
        return (probs.double().log() + gumbel(seed, positions, width)).argmax(-1)
    if (index := native_gumbel_max(probs[0], ids, seed, first)) is not None:
        return torch.tensor([index])
    noise = _row(seed, first, width if ids is None else ids, probs.device)
    return (probs.double().log() + noise).argmax(-1)


def gumbel_max_of_rows(probs: Tensor, keys: Tensor) -> Tensor:
    """As `gumbel_max` for ``probs [N, V]`` of several sequences: row i by the noise of ``keys[i]``.

    ``keys [N]`` int64 are made by `noise_key`, on the host.
    """
    return (probs.double().log() + _from_keys(keys, probs.shape[-1])).argmax(-1)


def gumbel_top(probs: Tensor, keys: Tensor, count: int) -> Tensor:
    """Draw ``count`` different tokens from each row of ``probs [N, V]``, in their order: ``[N, count]``.

    Row i uses the noise of ``keys[i]``. The largest sums of log probability and Gumbel noise are draws
    without replacement (Kool et al. 2019, arXiv 1903.06059).
    """
    return (probs.double().log() + _from_keys(keys, probs.shape[-1])).topk(count).indices


def noise_key(seed: int, position: int) -> int:
    """Return the key of a position's noise, as a signed 64-bit integer: what `gumbel` mixes first."""
    return _signed(_mixed(_mixed(seed + _GOLDEN) + position * _GOLDEN))


def _mixed(value: int) -> int:
    """As `_mix`, for one number of any size on the host."""
    value &= _WORD
    value = ((value ^ value >> 30) * _MIX[0]) & _WORD
    value = ((value ^ value >> 27) * _MIX[1]) & _WORD
    return value ^ value >> 31


def _signed(value: int) -> int:
    return value - (value >> 63 << 64)


@lru_cache(_KEPT)
def _row(seed: int, position: int, tokens: int | Tensor, device: torch.device) -> Tensor:
    """One position's noise ``[1, n]``, see `gumbel`; cached by the tensor object, not by its values."""
    with torch.inference_mode(False):
        return gumbel(seed, torch.full((1,), position, dtype=torch.int64, device=device), tokens)


def _mix(value: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64 (two's complement: multiplication wraps as unsigned would)."""
    value = (value ^ _shift(value, 30)) * _MIX[0]
    value = (value ^ _shift(value, 27)) * _MIX[1]
    return value ^ _shift(value, 31)


def _shift(value: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's is arithmetic, so its sign bits are masked out."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
