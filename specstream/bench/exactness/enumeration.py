"""The exact distribution of a rule's output by enumeration, and the G-test against it.

Everything is batched over B problems and over all V^K proposals of K tokens, in float64. A *table* is a
small language model: ``levels[j]`` is ``[B, V^j, V]``, the distribution after each of the V^j contexts
of j tokens.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from specstream.drafting.rules import Acceptance
from specstream.model.tree import Tree

__all__ = [
    "Enumerated",
    "GTest",
    "Table",
    "detectable",
    "enumerate_rule",
    "g_test",
    "holm",
    "joint",
    "power",
    "samples_needed",
    "survival",
]

_LEAST_EXPECTED = 5.0  # counts of a cell; below this the chi-squared approximation is poor


@dataclass(frozen=True, slots=True)
class GTest:
    """One comparison of counts with an exact distribution."""

    p_value: float  # of counts at least this unlikely; 0 if an impossible outcome occurred
    n: int  # sample size
    df: int  # degrees of freedom, after pooling
    tv: float  # total variation between frequencies and distribution (pooled; noise included)
    noise: float  # mean of ``tv`` for an exact sampler

    @property
    def detectable(self) -> float:
        """The total variation that a sample of this size rejects at p < 1e-3 with probability 0.99."""
        return detectable(self.n, self.df)


Category = TypeVar("Category", bound=Hashable)


def g_test(seen: Mapping[Category, int], exact: Mapping[Category, float]) -> GTest:
    """Compare counts with an exact distribution.

    Args:
        seen: category → count.
        exact: category → probability; sums to 1. Outcomes that are expected fewer than 5 times are
            pooled, rarest first.

    Raises:
        ValueError: the distribution doesn't sum to 1, or there is nothing to compare.
    """
    n, total = sum(seen.values()), math.fsum(exact.values())
    if n == 0 or abs(total - 1) > 1e-6:
        raise ValueError(f"{n} outcomes against a distribution that sums to {total}")
    impossible = sum(count for key, count in seen.items() if exact.get(key, 0.0) <= 0.0)
    cells = [
        (math.fsum(exact[key] for key in cell) / total, sum(seen.get(key, 0) for key in cell))
        for cell in _pooled(exact, n)
    ]
    df = len(cells) - 1
    tv = 0.5 * sum(abs(k / n - q) for q, k in cells) + impossible / n
    noise = 0.5 * sum(math.sqrt(2 * max(0.0, q * (1 - q)) / (math.pi * n)) for q, _ in cells)
    statistic = 2 * sum(k * math.log(k / (n * q)) for q, k in cells if k)
    p_value = 0.0 if impossible else survival(statistic, df)
    return GTest(p_value, n, df, tv, noise)


def _pooled(exact: Mapping[Category, float], n: int) -> list[list[Category]]:
    """Possible outcomes, in cells that are each expected often enough, as far as possible."""
    cells: list[list[Category]] = []
    cell, mass = list[Category](), 0.0
    for key in sorted((key for key in exact if exact[key] > 0.0), key=exact.__getitem__):
        cell.append(key)
        mass += exact[key]
        if mass * n >= _LEAST_EXPECTED:
            cells.append(cell)
            cell, mass = [], 0.0
    if cells:
        cells[-1] += cell  # too rare for a cell of its own
        return cells
    return [cell]


def samples_needed(exact: Mapping[Category, float], tv: float) -> int:
    """The smallest sample size, to within a quarter, that detects a total variation of ``tv``.

    0 if one outcome is certain. The search ends at about a million, which is then the result.
    """
    if sum(probability > 0.0 for probability in exact.values()) < 2:
        return 0  # any deviation is an impossible outcome
    n = 10
    while n < 1_000_000 and detectable(n, len(_pooled(exact, n)) - 1) > tv:
        n += max(5, n // 4)
    return n


def survival(statistic: float, df: int) -> float:
    """P(chi-squared with ``df`` degrees of freedom > ``statistic``); 1 for df = 0."""
    if df < 1:
        return 1.0
    half = torch.tensor([df / 2, max(statistic, 0.0) / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def power(n: int, df: int, tv: float, alpha: float = 1e-3) -> float:
    """A lower bound of the probability that n samples detect a total variation of ``tv``.

    Computed for a noncentrality of n·4·tv², the least that such a deviation can have (Pinsker).
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
    most = df + 20 * math.sqrt(2 * df) + 100
    return _least(lambda statistic: survival(statistic, df) <= alpha, 0.0, most, 60)


def detectable(n: int, df: int, alpha: float = 1e-3, wanted: float = 0.99) -> float:
    """The smallest total variation that n samples detect with probability ``wanted``; 1 if none."""
    if df < 1:
        return 1.0
    return _least(lambda tv: power(n, df, tv, alpha) >= wanted, 0.0, 1.0, 30)


def _least(holds: Callable[[float], bool], low: float, high: float, halvings: int) -> float:
    """The least value from ``low`` to ``high`` from which on ``holds``, by bisection."""
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
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


Table = list[Tensor]
RuleOf = Callable[[Tensor, Tensor, Tensor], Acceptance]
"""``(tokens [B, N, K], draft [B, N, K, V], target [B, N, K + 1, V]) -> Acceptance``."""


@dataclass(frozen=True, slots=True)
class Enumerated:
    """``joint [B, V^L]``: distribution of the first L tokens; ``accepted [B]``: mean accepted tokens."""

    joint: Tensor
    accepted: Tensor


def joint(table: Table) -> Tensor:
    """``[B, V^L]``: the distribution of the first L = len(table) tokens."""
    out = table[0].squeeze(1)
    for level in table[1:]:
        out = (out.unsqueeze(-1) * level).flatten(1)
    return out


def enumerate_rule(
    rule: RuleOf, target: Table, draft: Table, parents: Sequence[int], *, replacement: bool = True
) -> Enumerated:
    """The exact distribution of the output when K tokens are drafted along ``parents`` and verified.

    Each node's token is drawn from the draft's row in the context of its path; without ``replacement``,
    earlier siblings are excluded. The target continues what the round emits, so that the result can be
    compared with `joint`.
    """
    vocab_size, count = target[0].shape[-1], len(parents)
    tokens = torch.cartesian_prod(*[torch.arange(vocab_size)] * count).reshape(-1, count)
    context = _contexts(tokens, parents, vocab_size)
    depths = [0, *(len(path) for path in Tree(tuple(parents)).paths)]
    rows = torch.stack([target[d][:, context[:, at]] for at, d in enumerate(depths)], -2)
    drawn = [
        _drafted(draft[depths[parent + 1]], tokens, parents, context, node, replacement)
        for node, parent in enumerate(parents)
    ]
    drafted = torch.stack(drawn, -2)
    chosen = tokens.expand(rows.shape[0], -1, -1)
    weight = drafted.gather(-1, chosen.unsqueeze(-1)).squeeze(-1).prod(-1)
    verdict = rule(chosen, drafted, rows)
    ended = weight.unsqueeze(-1) * verdict.accepted
    total = verdict.following.sum(-1, keepdim=True)
    following = verdict.following / total.clamp_min(torch.finfo(total.dtype).tiny)
    levels = [rows.new_zeros(rows.shape[0], vocab_size**d, vocab_size) for d in range(len(target))]
    for at, depth in enumerate(depths):
        part = ended[..., at, None] * following[..., at, :]
        levels[depth].index_add_(1, context[:, at], part)
    out = levels[0].squeeze(1)
    for depth in range(1, len(target)):
        out = (out.unsqueeze(-1) * target[depth] + levels[depth]).flatten(1)
    accepted = (ended * torch.tensor(depths, dtype=ended.dtype)).sum((-1, -2))
    return Enumerated(out, accepted)


def _contexts(tokens: Tensor, parents: Sequence[int], vocab_size: int) -> Tensor:
    """``[N, K + 1]``: for the root and each node, the index of its context among those of its length."""
    columns = [torch.zeros(tokens.shape[0], dtype=torch.int64)]
    for node, parent in enumerate(parents):
        columns.append(columns[parent + 1] * vocab_size + tokens[:, node])
    return torch.stack(columns, -1)


def _drafted(
    level: Tensor, tokens: Tensor, parents: Sequence[int], context: Tensor, node: int, replacement: bool
) -> Tensor:
    """``[B, N, V]``: the distribution that a node's token is drawn from."""
    parent = parents[node]
    row = level[:, context[:, parent + 1]]
    if replacement:
        return row
    before = [j for j in range(node) if parents[j] == parent]
    for j in before:
        row = row.scatter(-1, tokens[:, j : j + 1].expand(row.shape[0], -1, 1), 0)
    mass = row.sum(-1, keepdim=True)
    return torch.where(mass > 0, row / mass.clamp_min(torch.finfo(row.dtype).tiny), row)
