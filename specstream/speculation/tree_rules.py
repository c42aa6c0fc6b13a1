"""The rules of `specstream.speculation.rules` for trees: at each node one child or none is accepted.

``parents[j]`` is the node that token j follows (-1: the root), and comes before j. Row 0 of the target
is after the root, row j + 1 after node j. The `Acceptance` of a tree has the probability that
verification ends at each row (0: no token is accepted), and the distribution of the token that follows
there; for a chain it equals the chain's `Acceptance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specstream.model.transfer import to_device
from specstream.model.tree import Tree
from specstream.speculation.rules import Acceptance

__all__ = ["Siblings", "sibling_rule", "tree_rule"]


@dataclass(frozen=True, slots=True)
class Siblings:
    """The acceptance of the m children of one node.

    Attributes:
        taken: ``[..., m]``, the probability that each child is accepted.
        none: ``[...]``, the probability that no child is accepted.
        following: ``[..., V]``, unnormalised: the distribution of the next token if none is; arbitrary
            where ``none`` is 0.
    """

    taken: Tensor
    none: Tensor
    following: Tensor


def sibling_rule(children: Tensor, target: Tensor, draft: Tensor | None = None) -> Siblings:
    """The acceptance of the children of one node, tried in their order.

    Args:
        children: ``[..., m]`` int64.
        target: ``[..., V]``, the target's distribution at the node.
        draft: ``[..., m, V]``: row i is the distribution that child i was drawn from, *given the
            siblings before it*: with replacement the same row for all; without replacement the row with
            the earlier siblings set to 0 and normalised again. A child of probability 0 is never
            accepted. None: the children were not drawn (top-k, n-grams).

    Returns:
        For drawn children, with R = p at first and S the row of the child x that is tried: accept x with
        probability min(1, R(x) / S(x)), else set R to norm(max(R - S, 0)) and try the next child
        (SpecInfer, Miao et al. 2024; without replacement Sequoia, Chen et al. 2024). For children that
        were not drawn: draw y from p and accept the child whose token is y, if any.
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
        # The residual is empty only if R and S agree up to rounding, and then no child is rejected.
        rest = torch.where(mass > 0, residual / mass.clamp_min(tiny), rest)
    return Siblings(torch.stack(taken, -1), alive, rest)


def _deterministic(children: Tensor, target: Tensor) -> Siblings:
    rest, taken = target, []
    for i in range(children.shape[-1]):
        at = children[..., i : i + 1]
        taken.append(rest.gather(-1, at).squeeze(-1))
        rest = rest.scatter(-1, at, 0)  # so that a token which is proposed twice counts once
    return Siblings(torch.stack(taken, -1), rest.sum(-1), rest)


def tree_rule(
    tokens: Tensor, parents: Sequence[int], target: Tensor, draft: Tensor | None = None
) -> Acceptance:
    """The acceptance distribution of a tree: `sibling_rule` at every node, from the root down.

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
    # Children of one node side by side, by one index for the whole tree.
    order = sorted(range(count), key=lambda node: (parents[node], node))
    if order != list(range(count)):
        index = to_device(order, tokens.device)
        tokens = tokens.index_select(-1, index)
        draft = None if draft is None else draft.index_select(-2, index)
    first = 0
    for at in range(count + 1):
        children = [node for node in order if parents[node] == at - 1]
        row = target[..., at, :]
        if not children:
            ends.append(reach[at])
            following.append(row)
            continue
        mine = slice(first, first + len(children))
        first = mine.stop
        rows = None if draft is None else draft[..., mine, :]
        siblings = sibling_rule(tokens[..., mine], row, rows)
        for number, node in enumerate(children):
            reach[node + 1] = reach[at] * siblings.taken[..., number]
        ends.append(reach[at] * siblings.none)
        following.append(siblings.following)
    return Acceptance.of(torch.stack(ends, -1), torch.stack(following, -2))
