"""Acceptance rules of speculative sampling, for chains and for trees, as probabilities.

``parents[j]`` is the node that token j follows (-1: the root), and comes before j. Row 0 of the target
is after the root, row j + 1 after node j. The `Acceptance` of a tree has the probability that
verification ends at each row (0: no token is accepted), and the distribution of the token that follows
there; for a chain it equals the chain's `Acceptance`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from specstream.model.numerics import to_device
from specstream.model.tree import Tree

__all__ = [
    "Acceptance",
    "Siblings",
    "block_rule",
    "deterministic_rule",
    "ratio_rule",
    "sibling_rule",
    "tree_rule",
]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A rule's decision on a chain, as probabilities.

    Attributes:
        accepted: ``[..., K + 1]``: entry n is the probability that n leading tokens are accepted.
        rows: For counts ``[..., n]`` int64 of accepted tokens, the distributions of the token that
            follows, ``[..., n, V]``, unnormalised; arbitrary where ``accepted`` is 0. It is a function
            because only the row that was drawn is needed.
    """

    accepted: Tensor
    rows: Callable[[Tensor], Tensor]

    @property
    def following(self) -> Tensor:
        """``[..., K + 1, V]``: the rows for every count."""
        counts = torch.arange(self.accepted.shape[-1], device=self.accepted.device)
        return self.rows(counts.expand(self.accepted.shape))

    @staticmethod
    def of(accepted: Tensor, following: Tensor) -> Acceptance:
        """An acceptance whose rows are computed already."""
        return Acceptance(accepted, partial(_rows, following))


def ratio_rule(
    tokens: Tensor, draft: Tensor, target: Tensor, lengths: Tensor | None = None
) -> Acceptance:
    """Token verification: accept x with probability min(1, p(x) / q(x)), else draw from max(p - q, 0).

    Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2.
    """
    keep = _ratio(tokens, draft, target).clamp_max(1)
    accepted = _chain(keep, target, lengths)
    last = _last(tokens.shape[-1], lengths, target)
    return Acceptance(accepted, partial(_residual, target, draft, torch.ones_like(accepted), last))


def deterministic_rule(tokens: Tensor, target: Tensor, lengths: Tensor | None = None) -> Acceptance:
    """The ratio rule with q a point mass: accept x with probability p(x), else draw from p without x."""
    keep = _at(target[..., :-1, :], tokens)
    last = _last(tokens.shape[-1], lengths, target)
    return Acceptance(_chain(keep, target, lengths), partial(_others, target, tokens, last))


def block_rule(
    tokens: Tensor, draft: Tensor, target: Tensor, lengths: Tensor | None = None
) -> Acceptance:
    """Block verification: test the block as a whole; never accepts fewer on average than `ratio_rule`.

    Sun et al. 2025 (ICLR), algorithm 2. With w_0 = 1 and w_i = min(1, w_{i-1} p(x_i) / q(x_i)):
    n = max{i : eta_i <= h_i} for independent uniform eta_i, where h_i = R_i / (R_i + 1 - w_i) and
    R_i = sum max(w_i p - q, 0) for i < K, and h_K = w_K; then a draw from max(w_n p - q, 0).

    The w are a random walk reflected at 1: with S_i the sum of the first i log ratios,
    log w_i = S_i - max(S_0, …, S_i) (Lindley's recursion), which needs no loop.
    """
    count = tokens.shape[-1]
    steps = _ratio(tokens, draft, target).log()
    steps = torch.where(_real(count, lengths, tokens), steps, -torch.inf)
    walk = torch.cat([torch.zeros_like(target[..., :1, 0]), steps.cumsum(-1)], -1)
    weight = (walk - walk.cummax(-1).values).exp()
    mass = (weight[..., :-1, None] * target[..., :-1, :]).sub_(draft).clamp_min_(0).sum(-1)
    share = mass / (mass + 1 - weight[..., :-1]).clamp_min(_tiny(mass))
    last = _last(count, lengths, target)
    at = torch.arange(count + 1, device=target.device)
    step = torch.cat([share, weight[..., -1:]], -1)
    step = torch.where(at == last, weight, step)
    step = torch.where(at > last, 0.0, step)
    step[..., 0] = 1.0  # eta_0 <= h_0 always: no count is below 0
    # n is the largest i whose step succeeds: read the steps from the end.
    missed = torch.cat([torch.ones_like(step[..., :1]), (1 - step).flip(-1)[..., :-1]], -1)
    accepted = step * missed.cumprod(-1).flip(-1)
    return Acceptance(accepted, partial(_residual, target, draft, weight, last))


def _chain(keep: Tensor, target: Tensor, lengths: Tensor | None) -> Tensor:
    """The distribution of how many independent tests succeed before one fails."""
    keep = keep * _real(keep.shape[-1], lengths, keep)
    one = torch.ones_like(target[..., :1, 0])
    return torch.cat([one, keep.cumprod(-1)], -1) * torch.cat([1 - keep, one], -1)


def _residual(target: Tensor, draft: Tensor, weight: Tensor, last: Tensor, counts: Tensor) -> Tensor:
    """max(w p - q, 0) after ``counts`` tokens; p itself where all are accepted.

    Where p and q agree up to rounding, the residual is empty although rounding leaves a rejection some
    probability; the target's row takes its place.
    """
    own = _rows(target, counts)
    if not draft.shape[-2]:
        return own
    drafted = _rows(draft, counts.clamp_max(draft.shape[-2] - 1))
    left = (weight.gather(-1, counts).unsqueeze(-1) * own - drafted).clamp_min_(0)
    whole = (counts == last) | (left.sum(-1) <= 0)
    return torch.where(whole.unsqueeze(-1), own, left)


def _others(target: Tensor, tokens: Tensor, last: Tensor, counts: Tensor) -> Tensor:
    """The target's row without the drafted token; all of it where all are accepted."""
    own = _rows(target, counts)
    if not tokens.shape[-1]:
        return own
    drafted = tokens.gather(-1, counts.clamp_max(tokens.shape[-1] - 1))
    left = own.scatter(-1, drafted.unsqueeze(-1), 0)
    whole = (counts == last) | (left.sum(-1) <= 0)
    return torch.where(whole.unsqueeze(-1), own, left)


def _rows(rows: Tensor, counts: Tensor) -> Tensor:
    index = counts.unsqueeze(-1).expand(*counts.shape, rows.shape[-1])
    return rows.expand(*counts.shape[:-1], *rows.shape[-2:]).gather(-2, index)


def _ratio(tokens: Tensor, draft: Tensor, target: Tensor) -> Tensor:
    return _at(target[..., :-1, :], tokens) / _at(draft, tokens).clamp_min(_tiny(draft))


def _at(rows: Tensor, tokens: Tensor) -> Tensor:
    return rows.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def _tiny(like: Tensor) -> float:
    return torch.finfo(like.dtype).tiny


def _real(count: int, lengths: Tensor | None, like: Tensor) -> Tensor:
    if lengths is None:
        return torch.ones_like(like, dtype=torch.bool)
    return torch.arange(count, device=like.device) < lengths.unsqueeze(-1)


def _last(count: int, lengths: Tensor | None, like: Tensor) -> Tensor:
    """``[..., 1]``: the count at which every real token is accepted."""
    if lengths is None:
        return torch.full((1,), count, device=like.device)
    return lengths.unsqueeze(-1)


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
