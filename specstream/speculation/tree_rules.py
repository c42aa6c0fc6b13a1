"""The rules of `specstream.speculation.rules` for trees: at each node one child or none is accepted.

``parents[j]`` is the node that token j follows (-1: the root), and comes before j. Row 0 of the target
follows the root, row j + 1 node j. The `Acceptance` of a tree tells at which row verification ends (0:
no token is accepted) and what follows there; for a chain it is that of the chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specstream.model.tree import Tree
from specstream.speculation.rules import Acceptance

__all__ = ["Siblings", "path_to", "sibling_rule", "tree_rule"]


@dataclass(frozen=True, slots=True)
class Siblings:
    """What happens at one node with m children.

    Attributes:
        taken: ``[..., m]``, the probability that each child is accepted.
        none: ``[...]``, the probability that none is.
        following: ``[..., V]``, unnormalised: the distribution of the token that follows then. Where
            ``none`` is 0 the row may be anything.
    """

    taken: Tensor
    none: Tensor
    following: Tensor


def sibling_rule(children: Tensor, target: Tensor, draft: Tensor | None = None) -> Siblings:
    """The acceptance of the children of one node, tried in their order.

    Args:
        children: ``[..., m]`` int64.
        target: ``[..., V]``, the target's distribution at the node.
        draft: ``[..., m, V]``: row i is what child i was drawn from, *given the siblings before it*:
            the same row for each if they were drawn with replacement; without, the row with those
            before it left out, normalised. A child of probability 0 is never accepted. None: the
            children were not drawn (top-k, n-grams).

    Returns:
        For drawn children: with R_1 = p, take x with probability min(1, R(x) / S(x)), else
        R <- norm(max(R - S, 0)) and try the next (SpecInfer, Miao et al. 2024; without replacement
        Sequoia, Chen et al. 2024). For the others: draw y from p and go to the child that it is.
    """
    if draft is None:
        return _deterministic(children, target)
    rest, alive, taken = target, torch.ones_like(target[..., 0]), []
    for i in range(children.shape[-1]):
        at, row = children[..., i : i + 1], draft[..., i, :]
        tiny, drawn = torch.finfo(row.dtype).tiny, row.gather(-1, at)
        keep = (rest.gather(-1, at) / drawn.clamp_min(tiny)).clamp_max(1) * (drawn > 0)
        keep = keep.squeeze(-1)
        taken.append(alive * keep)
        alive = alive * (1 - keep)
        residual = (rest - row).clamp_min(0)
        mass = residual.sum(-1, keepdim=True)
        # Nothing is left only where R and S agree up to rounding, and then nothing is rejected.
        rest = torch.where(mass > 0, residual / mass.clamp_min(tiny), rest)
    return Siblings(torch.stack(taken, -1), alive, rest)


def _deterministic(children: Tensor, target: Tensor) -> Siblings:
    rest, taken = target, []
    for i in range(children.shape[-1]):
        at = children[..., i : i + 1]
        taken.append(rest.gather(-1, at).squeeze(-1))
        rest = rest.scatter(-1, at, 0)  # so a child that is there twice counts once
    return Siblings(torch.stack(taken, -1), rest.sum(-1), rest)


def tree_rule(
    tokens: Tensor, parents: Sequence[int], target: Tensor, draft: Tensor | None = None
) -> Acceptance:
    """The acceptance distribution of a tree: that of siblings along every path, from the root down.

    Args:
        tokens: ``[..., K]``; siblings are tried in their order here.
        parents: K indices, one tree for the whole batch.
        target: ``[..., K + 1, V]``.
        draft: ``[..., K, V]``, a row a node as in `sibling_rule`; None for deterministic trees.

    Raises:
        ValueError: a parent doesn't come before its child.
    """
    count = len(parents)
    Tree(tuple(parents))  # checks the order
    reach = [torch.ones_like(target[..., 0, 0])] + [target.new_zeros(())] * count
    ends, following = [], []
    for at in range(count + 1):
        children = [node for node, parent in enumerate(parents) if parent == at - 1]
        row = target[..., at, :]
        if not children:
            ends.append(reach[at])
            following.append(row)
            continue
        rows = None if draft is None else draft[..., children, :]
        siblings = sibling_rule(tokens[..., children], row, rows)
        for number, node in enumerate(children):
            reach[node + 1] = reach[at] * siblings.taken[..., number]
        ends.append(reach[at] * siblings.none)
        following.append(siblings.following)
    return Acceptance.of(torch.stack(ends, -1), torch.stack(following, -2))


def path_to(node: int, parents: Sequence[int]) -> tuple[int, ...]:
    """The nodes from the root's child down to ``node``, which is the last; of -1: none."""
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return tuple(reversed(path))
