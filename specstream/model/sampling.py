"""Turns logits into probabilities, and draws tokens. Target and draft use the same functions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specstream.model.native.sampling import native_draw, native_softmax, native_without
from specstream.types import SamplingParams

__all__ = ["draw", "draw_at", "draw_one", "free_to_look", "probabilities", "uniforms", "without"]


_COOL = 0.01  # below this temperature, dividing usual logits by it could overflow float32
_COLDEST = 1e-30  # lower temperatures are raised to this, which is greedy in effect


def free_to_look(rows: Tensor) -> bool:
    """Whether the host can read values of ``rows`` without waiting for a device: only on a CPU."""
    return rows.device.type == "cpu"


def probabilities(logits: Tensor, params: SamplingParams) -> Tensor:
    """Return the distribution that a token is drawn from under ``params``.

    The warpers are applied in transformers' order; each gets the renormalised result of the one before.
    Among equal values at the cut-off, top-k, min-p and typical-p keep all, top-p the lowest ids.

    Args:
        logits: ``[..., V]``, any float dtype; each row has a finite maximum (below 1e36).
        params: Temperature above 0, then top-k, top-p, min-p, typical-p.

    Returns:
        ``[..., V]`` float32, each row sums to 1.
    """
    probs = None
    if params.temperature >= _COOL and not 0 < params.top_k < logits.shape[-1]:
        probs = native_softmax(logits, 1.0 / params.temperature)
    if probs is None:
        probs = _softmax(logits, params)
    if params.top_p < 1.0:
        ordered, order = probs.sort(dim=-1, descending=True, stable=True)
        keep = _until(ordered, params.top_p)
        probs = _only(probs, torch.zeros_like(keep).scatter(-1, order, keep))
    if params.min_p > 0.0:
        probs = _only(probs, probs >= params.min_p * probs.amax(-1, keepdim=True))
    if params.typical_p < 1.0:
        probs = _only(probs, _typical(probs, params.typical_p))
    return probs


def _softmax(logits: Tensor, params: SamplingParams) -> Tensor:
    """Apply temperature and top-k, then the softmax."""
    scaled = logits.float()
    if params.temperature < _COOL:
        scaled = (scaled - scaled.amax(-1, keepdim=True)) / max(params.temperature, _COLDEST)
    else:
        scaled = scaled * (1.0 / params.temperature)
    if 0 < params.top_k < scaled.shape[-1]:
        kth = scaled.topk(params.top_k, dim=-1).values[..., -1:]
        scaled = scaled.masked_fill(scaled < kth, -torch.inf)
    return scaled.softmax(-1)


def _only(probs: Tensor, keep: Tensor) -> Tensor:
    kept = probs.masked_fill(~keep, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def _until(ordered: Tensor, mass: float) -> Tensor:
    """Mask of the leading entries whose sum just reaches ``mass``; at least the first entry."""
    before = ordered.cumsum(-1) - ordered
    keep = before < mass
    keep[..., 0] = True
    return keep


def _typical(probs: Tensor, mass: float) -> Tensor:
    """Mask of typical-p: tokens whose surprisal is nearest to the entropy, until they have ``mass``."""
    surprise = -probs.log()
    entropy = (probs * surprise).nansum(-1, keepdim=True)  # 0 times infinity counts as 0
    distance = (surprise - entropy).abs()
    ordered, order = distance.sort(dim=-1, stable=True)
    kept = _until(probs.gather(-1, order), mass)
    furthest = ordered.masked_fill(~kept, -torch.inf).amax(-1, keepdim=True)
    return distance <= furthest


def draw(weights: Tensor, generator: torch.Generator) -> Tensor:
    """Draw one token per row of unnormalised ``weights [N, V]``: ``[N]`` int64.

    Uses one uniform number per row, so the generator's state afterwards depends on the row count only.
    """
    return draw_at(weights, uniforms(weights.shape[0], generator))


def uniforms(count: int, generator: torch.Generator) -> Tensor:
    """Draw ``[count]`` float64 numbers, uniform in [0, 1), on the generator's device."""
    return torch.rand(count, dtype=torch.float64, device=generator.device, generator=generator)


def draw_at(weights: Tensor, uniform: Tensor) -> Tensor:
    """Sample by inverse CDF: each row's first index at which its cumulative share exceeds ``uniform``.

    Args:
        weights: ``[N, V]``, unnormalised, each row with a positive sum.
        uniform: ``[N]`` float64 in [0, 1).

    Returns:
        ``[N]`` int64; an entry of weight 0 is never chosen.
    """
    if weights.shape[0] == 1 and free_to_look(weights):
        found = draw_one(weights[0], uniform.item())
        return torch.tensor([weights.shape[-1] - 1 if found is None else found])
    cdf = weights.cumsum(-1, dtype=torch.float64)
    total = cdf[:, -1:]
    # Rounding may lift the threshold to the total, which no entry's cumulative weight exceeds.
    below = torch.nextafter(total, torch.zeros_like(total))
    threshold = torch.minimum(uniform.unsqueeze(-1) * total, below)
    # right=True finds the first entry above the threshold, so never one of weight 0.
    index = torch.searchsorted(cdf, threshold, right=True).squeeze(-1)
    return index.clamp_max(weights.shape[-1] - 1)  # a row of NaN has no such entry


def draw_one(weights: Tensor, uniform: float) -> int | None:
    """As `draw_at` for one row ``[V]`` on a CPU; None if its sum is 0 or not finite."""
    if (index := native_draw(weights, uniform)) is not None:
        return index if index >= 0 else None
    cdf = weights.cumsum(-1, dtype=torch.float64)
    total = cdf[-1].item()
    if not 0.0 < total < math.inf:
        return None
    threshold = min(uniform * total, math.nextafter(total, 0.0))
    return int(torch.searchsorted(cdf, threshold, right=True).item())


def without(probs: Tensor, index: int) -> Tensor:
    """Return ``probs [V]`` float32 with 0 at ``index``, renormalised; the rest must not all be 0."""
    rest = native_without(probs, index)
    if rest is None:
        rest = probs.clone()
        rest[index] = 0.0
        rest /= rest.sum()
    return rest
