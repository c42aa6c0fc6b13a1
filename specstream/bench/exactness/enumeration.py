"""Exact output distribution of a rule, summed over every proposal that a draft can make.

Everything is batched over B problems and over all V^K proposals of K tokens, in float64. A *table* is a
small language model: ``levels[j]`` is ``[B, V^j, V]``, the distribution after each of the V^j contexts
of j tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specstream.model.tree import Tree
from specstream.speculation.rules import Acceptance

__all__ = ["Enumerated", "Table", "enumerate_rule", "joint"]

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
    rule: RuleOf,
    target: Table,
    draft: Table,
    parents: Sequence[int],
    *,
    replacement: bool = True,
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
    level: Tensor,
    tokens: Tensor,
    parents: Sequence[int],
    context: Tensor,
    node: int,
    replacement: bool,
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
