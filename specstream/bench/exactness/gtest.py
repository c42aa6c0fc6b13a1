"""The test that every sample goes through: likelihood ratio (G) with pooling, Holm, and its power.

Only torch is needed, so that ``specstream verify`` runs where the package does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

__all__ = ["GTest", "detectable", "g_test", "holm", "independence", "power", "survival"]


@dataclass(frozen=True, slots=True)
class GTest:
    """One comparison of counts with an exact law.

    Attributes:
        p_value: How often the exact law would look at least this odd. 0 if something happened that
            can't happen.
        n: Sample size.
        df: Degrees of freedom, after pooling.
        tv: Total variation distance between frequencies and law (pooled; noise included).
        noise: What ``tv`` is on average for an exact sampler, so that the two can be compared.
    """

    p_value: float
    n: int
    df: int
    tv: float
    noise: float

    @property
    def detectable(self) -> float:
        """The total variation that such a sample rejects at p < 1e-3 with probability 0.99."""
        return detectable(self.n, self.df)


Outcome = TypeVar("Outcome", bound=Hashable)


def g_test(
    seen: Mapping[Outcome, int], law: Mapping[Outcome, float], *, least: float = 5.0
) -> GTest:
    """Compare counts with an exact law.

    Args:
        seen: Outcome → count.
        law: Outcome → probability; sums to 1.
        least: Outcomes expected less often than this are pooled, rarest first.

    Raises:
        ValueError: the law doesn't sum to 1, or there is nothing to compare.
    """
    n, total = sum(seen.values()), math.fsum(law.values())
    if n == 0 or abs(total - 1) > 1e-6:
        raise ValueError(f"{n} outcomes against a law that sums to {total}")
    impossible = sum(count for key, count in seen.items() if law.get(key, 0.0) <= 0.0)
    cells: list[tuple[float, int]] = []
    mass, count = 0.0, 0
    for key, probability in sorted(law.items(), key=lambda item: item[1]):
        if probability <= 0.0:
            continue
        mass, count = mass + probability, count + seen.get(key, 0)
        if mass * n >= least:
            cells.append((mass / total, count))
            mass, count = 0.0, 0
    if mass:  # the rest is too small for a cell of its own
        last = cells.pop() if cells else (0.0, 0)
        cells.append((last[0] + mass / total, last[1] + count))
    df = len(cells) - 1
    tv = 0.5 * sum(abs(k / n - q) for q, k in cells) + impossible / n
    noise = 0.5 * sum(math.sqrt(2 * q * (1 - q) / (math.pi * n)) for q, _ in cells)
    statistic = 2 * sum(k * math.log(k / (n * q)) for q, k in cells if k)
    p_value = 0.0 if impossible else survival(statistic, df)
    return GTest(p_value, n, df, tv, noise)


def independence(counts: torch.Tensor) -> float:
    """p-value of a G-test that the rows and columns of a table of counts are independent."""
    counts = counts.double()
    expected = counts.sum(1, keepdim=True) * counts.sum(0, keepdim=True) / counts.sum()
    there = counts > 0
    statistic = 2 * (counts[there] * (counts[there] / expected[there]).log()).sum()
    return survival(float(statistic), (counts.shape[0] - 1) * (counts.shape[1] - 1))


def survival(statistic: float, df: int) -> float:
    """P(chi-squared with ``df`` degrees of freedom > ``statistic``); 1 for df = 0."""
    if df < 1:
        return 1.0
    half = torch.tensor([df / 2, max(statistic, 0.0) / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def power(n: int, df: int, tv: float, alpha: float = 1e-3) -> float:
    """How likely a deviation of ``tv`` is found with n samples: noncentrality n·4·tv².

    That noncentrality is the least there can be for a total variation of ``tv`` (Pinsker), so the
    power is at least this.
    """
    critical = _critical(df, alpha)
    # A noncentral chi-squared is a Poisson mixture of central ones.
    rate = n * 4 * tv * tv / 2
    width = int(12 * math.sqrt(rate) + 20)
    terms = torch.arange(max(0, int(rate) - width), int(rate) + width, dtype=torch.float64)
    weight = (terms * math.log(max(rate, 1e-300)) - rate - torch.lgamma(terms + 1)).exp()
    beyond = torch.special.gammaincc(df / 2 + terms, torch.full_like(terms, critical / 2))
    return float((weight * beyond).sum().clamp_max(1))


@functools.cache
def _critical(df: int, alpha: float) -> float:
    """The statistic that an exact sampler exceeds with probability ``alpha``."""
    low, high = 0.0, df + 20 * math.sqrt(2 * df) + 100
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if survival(middle, df) > alpha else (low, middle)
    return high


def detectable(n: int, df: int, alpha: float = 1e-3, wanted: float = 0.99) -> float:
    """The smallest total variation that n samples find with probability ``wanted``; 1 if none."""
    if df < 1:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if power(n, df, middle, alpha) >= wanted else (middle, high)
    return high


def holm(p_values: Sequence[float], alpha: float = 1e-3) -> list[bool]:
    """Which hypotheses are rejected with family-wise error ``alpha`` (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    rejected = [False] * len(p_values)
    for rank, index in enumerate(order):
        if p_values[index] > alpha / (len(p_values) - rank):
            break
        rejected[index] = True
    return rejected
