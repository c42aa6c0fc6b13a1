"""Turns logits into probabilities, and draws tokens. Target and draft use the same functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from random import Random

import numpy as np
import torch
from torch import Tensor

from specstream.model.native.sampling import native_draw, native_softmax, native_without
from specstream.model.numerics import to_device
from specstream.types import SamplingParams

__all__ = [
    "Uniforms",
    "column_of",
    "draw",
    "draw_at",
    "draw_one",
    "free_to_look",
    "nucleus",
    "only_nucleus",
    "probabilities",
    "probabilities_of_rows",
    "uniforms",
    "usable_mass",
    "without",
]

_COOL = 0.01  # below this temperature, dividing usual logits by it could overflow float32
_LEAST = 1e-30  # smaller masses of top-p and typical-p mean the likeliest token, too
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
        probs = nucleus(probs, usable_mass(params.top_p))
    if params.min_p > 0.0:
        probs = _only(probs, probs >= params.min_p * probs.amax(-1, keepdim=True))
    if params.typical_p < 1.0:
        probs = _only(probs, _typical(probs, params.typical_p))
    return probs


def probabilities_of_rows(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """As `probabilities` for ``logits [N, V]`` on a device, each row under its own parameters.

    Rows whose parameters are equal, or are temperature and top-p only, share all operations.
    """
    if all(map(only_nucleus, params)):
        scales = column_of(tuple(1.0 / one.temperature for one in params), logits.device)
        probs = (logits * scales).softmax(-1)  # the product is in float32
        if all(one.top_p >= 1.0 for one in params):
            return probs
        return nucleus(probs, column_of(tuple(usable_mass(one.top_p) for one in params), logits.device))
    groups = dict[tuple[float, ...], list[int]]()
    for row, one in enumerate(params):
        shape = one.temperature, one.top_k, one.top_p, one.min_p, one.typical_p
        groups.setdefault(shape, []).append(row)
    if len(groups) == 1:
        return probabilities(logits, params[0])
    order = [row for rows in groups.values() for row in rows]
    picked = [logits.index_select(0, to_device(rows, logits.device)) for rows in groups.values()]
    each = zip(picked, groups.values(), strict=True)
    made = torch.cat([probabilities(some, params[rows[0]]) for some, rows in each])
    back = sorted(range(len(order)), key=order.__getitem__)
    return made.index_select(0, to_device(back, logits.device))


@lru_cache(256)
def column_of(values: tuple[float, ...], device: torch.device) -> Tensor:
    """``[n, 1]`` float32 on the device; the same batch asks again for each drafted token."""
    with torch.inference_mode(False):
        return to_device(values, device, torch.float32).unsqueeze(-1)


def usable_mass(mass: float) -> float:
    """A mass that float32 can tell from 0, so that the likeliest token stays."""
    return max(mass, _LEAST)


def only_nucleus(params: SamplingParams) -> bool:
    """Whether only temperature and top-p shape the distribution."""
    whole = params.min_p <= 0.0 and params.typical_p >= 1.0 and params.top_k <= 0
    return whole and params.temperature >= _COOL


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


def nucleus(probs: Tensor, mass: float | Tensor) -> Tensor:
    """Apply top-p to distributions ``[..., V]``; ``mass`` is one number, or one a row (``[..., 1]``)."""
    if isinstance(mass, float) and free_to_look(probs):
        rows = probs.reshape(-1, probs.shape[-1])
        made = [_leading(row, mass) for row in rows]
        return (torch.stack(made) if len(made) != 1 else made[0]).reshape(probs.shape)
    return _nucleus(probs, mass)


def _leading(row: Tensor, mass: float) -> Tensor:
    """As `_nucleus` for one row ``[V]`` on a CPU, without sorting its tail.

    All values below ``(1 - mass) / V`` sum to less than ``1 - mass``, so none of them is in the nucleus.
    A vocabulary of 49,000 takes 0.1 ms instead of 4.
    """
    size = row.shape[0]
    values = row.numpy()
    ids = np.flatnonzero(values >= 0.5 * (1.0 - mass) / size)  # half: sums are rounded
    ids = ids[np.argsort(-values[ids], kind="stable")]
    reached = np.cumsum(values[ids], dtype=np.float64)
    count = int(np.searchsorted(reached, mass)) + 1
    if count > len(ids):  # a row that isn't finite, or a mass that rounding can't tell from 1
        return _nucleus(row, mass)
    made = torch.zeros(size, dtype=torch.float32)
    made.numpy()[ids[:count]] = values[ids[:count]] / reached[count - 1]
    return made


def _nucleus(probs: Tensor, mass: float | Tensor) -> Tensor:
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    kept = ordered.masked_fill(_behind(ordered, mass), 0.0)
    return torch.zeros_like(probs).scatter_(-1, order, kept.div_(kept.sum(-1, keepdim=True)))


def _only(probs: Tensor, keep: Tensor) -> Tensor:
    kept = probs.masked_fill(~keep, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def _behind(ordered: Tensor, mass: float | Tensor) -> Tensor:
    """Mask of all entries but the leading ones whose sum just reaches ``mass``, at least `_LEAST`."""
    return ordered.cumsum(-1).sub_(ordered) >= mass


def _typical(probs: Tensor, mass: float) -> Tensor:
    """Mask of typical-p: tokens whose surprisal is nearest to the entropy, until they have ``mass``."""
    surprise = -probs.log()
    entropy = (probs * surprise).nansum(-1, keepdim=True)  # 0 times infinity counts as 0
    distance = (surprise - entropy).abs()
    ordered, order = distance.sort(dim=-1, stable=True)
    behind = _behind(probs.gather(-1, order), usable_mass(mass))
    furthest = ordered.masked_fill(behind, -torch.inf).amax(-1, keepdim=True)
    return distance <= furthest


class Uniforms:
    """A source of uniform numbers on the host, whatever device they are used on.

    One upload serves all requests of a batch, where generators on the device would take a call each.
    """

    def __init__(self, seed: int) -> None:
        self._source = Random(seed)

    def take(self, count: int) -> list[float]:
        """Return the next numbers, uniform in [0, 1) with 53 random bits."""
        source = self._source.random
        return [source() for _ in range(count)]

    def twin(self) -> Uniforms:
        """A source of the same numbers from here on."""
        made = Uniforms(0)
        made._source.setstate(self._source.getstate())
        return made


def uniforms(count: int, generator: torch.Generator | Uniforms) -> list[float]:
    """Draw numbers, uniform in [0, 1), in double precision."""
    if isinstance(generator, Uniforms):
        return generator.take(count)
    made: list[float] = _random(count, generator).tolist()
    return made


def _random(count: int, generator: torch.Generator) -> Tensor:
    return torch.rand(count, dtype=torch.float64, device=generator.device, generator=generator)


def draw(weights: Tensor, generator: torch.Generator | Uniforms) -> Tensor:
    """Draw one token per row of unnormalised ``weights [N, V]``: ``[N]`` int64.

    Uses one uniform number per row, so the generator's state afterwards depends on the row count only.
    """
    count = weights.shape[0]
    if isinstance(generator, torch.Generator):
        return draw_at(weights, _random(count, generator))
    numbers = generator.take(count)
    if count == 1 and free_to_look(weights):
        return _looked(weights, numbers[0])
    return draw_at(weights, to_device(numbers, weights.device, torch.float64))


def draw_at(weights: Tensor, uniform: Tensor) -> Tensor:
    """Sample by inverse CDF: each row's first index at which its cumulative share exceeds ``uniform``.

    Args:
        weights: ``[N, V]``, unnormalised, each row with a positive sum.
        uniform: ``[N]`` float64 in [0, 1).

    Returns:
        ``[N]`` int64; an entry of weight 0 is never chosen.
    """
    if weights.shape[0] == 1 and free_to_look(weights):
        return _looked(weights, uniform.item())
    cdf = weights.cumsum(-1, dtype=torch.float64)
    total = cdf[:, -1:]
    # Rounding may lift the threshold to the total, which no entry's cumulative weight exceeds.
    below = torch.nextafter(total, _zero(total.device))
    threshold = torch.minimum(uniform.unsqueeze(-1) * total, below)
    # right=True finds the first entry above the threshold, so never one of weight 0.
    index = torch.searchsorted(cdf, threshold, right=True).squeeze(-1)
    return index.clamp_max(weights.shape[-1] - 1)  # a row of NaN has no such entry


def _looked(weights: Tensor, uniform: float) -> Tensor:
    found = draw_one(weights[0], uniform)
    return torch.tensor([weights.shape[-1] - 1 if found is None else found])


@lru_cache
def _zero(device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.zeros((), dtype=torch.float64, device=device)


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
