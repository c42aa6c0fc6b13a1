"""Exact enumeration: sum a rule's law over every proposal that a draft can make.

Everything is batched over B random problems and over all V^K proposals of K tokens, in float64, so
that hundreds of problems take a second. A *table* is a little language model: ``levels[j]`` is
``[B, V^j, V]``, the law of the token after each of the V^j contexts of j tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from specstream.speculation.rules import Acceptance
from specstream.speculation.tree_rules import path_to

__all__ = ["KINDS", "Kind", "Outcome", "Table", "enumerate_rule", "joint", "random_table"]

Kind = Literal["dense", "zeros", "one-hot", "low", "high"]
KINDS: tuple[Kind, ...] = ("dense", "zeros", "one-hot", "low", "high")
Table = list[Tensor]
LawOf = Callable[[Tensor, Tensor, Tensor], Acceptance]
"""``(tokens [B, N, K], draft [B, N, K, V], target [B, N, K + 1, V]) -> Acceptance``."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What comes out: ``joint [B, V^L]`` of the first L tokens, ``accepted [B]`` on average."""

    joint: Tensor
    accepted: Tensor


def random_table(
    kind: Kind, vocab_size: int, depth: int, count: int, generator: torch.Generator
) -> Table:
    """``count`` random tables with contexts of up to ``depth`` tokens.

    ``low`` and ``high`` put all mass on the lower or the upper half: together, disjoint supports.
    """
    levels = []
    half = vocab_size // 2
    for level in range(depth + 1):
        shape = (count, vocab_size**level, vocab_size)
        uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
        weights = -uniform.clamp_min(1e-300).log()
        weights = weights**2  # uneven: some tokens rare, some common
        if kind == "zeros":
            drop = torch.rand(shape, generator=generator) < 0.5
            drop.scatter_(-1, weights.argmax(-1, keepdim=True), False)
            weights = weights.masked_fill(drop, 0)
        elif kind == "one-hot":
            weights = torch.zeros_like(weights).scatter_(-1, weights.argmax(-1, keepdim=True), 1)
        elif kind == "low":
            weights[..., half:] = 0
        elif kind == "high":
            weights[..., :half] = 0
        levels.append(weights / weights.sum(-1, keepdim=True))
    return levels


def joint(table: Table) -> Tensor:
    """``[B, V^L]``: the law of the first L = len(table) tokens."""
    out = table[0].squeeze(1)
    for level in table[1:]:
        out = (out.unsqueeze(-1) * level).flatten(1)
    return out


def enumerate_rule(
    law_of: LawOf,
    target: Table,
    draft: Table,
    parents: Sequence[int],
    *,
    replacement: bool = True,
) -> Outcome:
    """The exact law of what is emitted when K tokens are drafted along ``parents`` and judged.

    Each node's token is drawn from the draft's row in the context of its path; without
    ``replacement``, siblings before it are left out. Whatever the round doesn't emit itself is
    continued by the target, so that the result can be compared with `joint`.
    """
    vocab_size, count = target[0].shape[-1], len(parents)
    tokens = torch.cartesian_prod(*[torch.arange(vocab_size)] * count).reshape(-1, count)
    context = _contexts(tokens, parents, vocab_size)
    depths = [len(path_to(node, parents)) for node in range(-1, count)]
    rows = torch.stack([target[d][:, context[:, at]] for at, d in enumerate(depths)], -2)
    drawn = [_drafted(draft, tokens, parents, context, node, replacement) for node in range(count)]
    drafted = torch.stack(drawn, -2)
    chosen = tokens.expand(rows.shape[0], -1, -1)
    weight = drafted.gather(-1, chosen.unsqueeze(-1)).squeeze(-1).prod(-1)
    law = law_of(chosen, drafted, rows)
    ended = weight.unsqueeze(-1) * law.accepted
    total = law.following.sum(-1, keepdim=True)
    following = law.following / total.clamp_min(torch.finfo(total.dtype).tiny)
    levels = [rows.new_zeros(rows.shape[0], vocab_size**d, vocab_size) for d in range(len(target))]
    for at, depth in enumerate(depths):
        part = ended[..., at, None] * following[..., at, :]
        levels[depth].index_add_(1, context[:, at], part)
    out = levels[0].squeeze(1)
    for depth in range(1, len(target)):
        out = (out.unsqueeze(-1) * target[depth] + levels[depth]).flatten(1)
    accepted = (ended * torch.tensor(depths, dtype=ended.dtype)).sum((-1, -2))
    return Outcome(out, accepted)


def _contexts(tokens: Tensor, parents: Sequence[int], vocab_size: int) -> Tensor:
    """``[N, K + 1]``: the number of each row's context among those of its length."""
    columns = [torch.zeros(tokens.shape[0], dtype=torch.int64)]
    for node, parent in enumerate(parents):
        columns.append(columns[parent + 1] * vocab_size + tokens[:, node])
    return torch.stack(columns, -1)


def _drafted(
    draft: Table,
    tokens: Tensor,
    parents: Sequence[int],
    context: Tensor,
    node: int,
    replacement: bool,
) -> Tensor:
    """``[B, N, V]``: what a node's token is drawn from."""
    parent = parents[node]
    row = draft[len(path_to(parent, parents))][:, context[:, parent + 1]]
    if replacement:
        return row
    before = [j for j in range(node) if parents[j] == parent]
    for j in before:
        row = row.scatter(-1, tokens[:, j : j + 1].expand(row.shape[0], -1, 1), 0)
    mass = row.sum(-1, keepdim=True)
    return torch.where(mass > 0, row / mass.clamp_min(torch.finfo(row.dtype).tiny), row)
