"""Verification of tree-shaped proposals: the laws of `specstream.speculation.rules` with siblings.

A tree is a chain with choices: ``parents[j]`` names the node that token j follows (-1: the root), and
comes before j. The verifier walks down from the root; at each node one child or none is taken. Shapes
are those of `specstream.speculation.rules`, with K nodes for K drafted tokens: row 0 of the target
follows the root, row j + 1 follows node j. An `Acceptance` over a tree says at which row the walk ends
(0: no token stands) and what follows there; for a chain it is the same `Acceptance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specstream.model.noise import gumbel_max
from specstream.model.sampling import draw_at, probabilities
from specstream.model.tree import Tree
from specstream.speculation.proposal import Verdict
from specstream.speculation.rules import Acceptance
from specstream.speculation.verify import Case

__all__ = ["Siblings", "match_tree", "path_to", "sibling_rule", "tree_rule", "verify_tree"]


@dataclass(frozen=True, slots=True)
class Siblings:
    """What happens at one node with m children.

    Attributes:
        taken: ``[..., m]``, the probability that the walk goes on to each child.
        none: ``[...]``, the probability that it ends here.
        following: ``[..., V]``, unnormalised: the law of the token that ends it. Where ``none`` is 0
            the row may be anything.
    """

    taken: Tensor
    none: Tensor
    following: Tensor


def sibling_rule(children: Tensor, target: Tensor, draft: Tensor | None = None) -> Siblings:
    """Verifier the children of one node, in their order.

    Args:
        children: ``[..., m]`` int64.
        target: ``[..., V]``, the target's distribution at the node.
        draft: ``[..., m, V]``: row i is what child i was drawn from, *given the siblings before it*:
            the same row for each if they were drawn with replacement; without, the row with those
            before it left out, normalised. None: the children are no draw at all (top-k, n-grams).

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
        tiny = torch.finfo(row.dtype).tiny
        keep = (rest.gather(-1, at) / row.gather(-1, at).clamp_min(tiny)).clamp_max(1).squeeze(-1)
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
    """The law of a whole tree: sibling laws along every path, from the root down.

    Args:
        tokens: ``[..., K]``; siblings are judged in the order in which they stand here.
        parents: K indices, one tree for the whole batch.
        target: ``[..., K + 1, V]``.
        draft: ``[..., K, V]``, a row a node as in `sibling_rule`; None for deterministic trees.

    Raises:
        ValueError: a parent doesn't come before its child.
    """
    count = len(parents)
    Tree(tuple(parents))  # refuses what is none
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
        law = sibling_rule(tokens[..., children], row, rows)
        for number, node in enumerate(children):
            reach[node + 1] = reach[at] * law.taken[..., number]
        ends.append(reach[at] * law.none)
        following.append(law.following)
    return Acceptance.of(torch.stack(ends, -1), torch.stack(following, -2))


def verify_tree(case: Case) -> Verdict:
    """Verifier one tree (or chain); the emitted tokens have exactly the target's law.

    ``case.logits`` is ``[K + 1, V]``: row 0 follows the committed tokens, row j + 1 node j on its own
    path. A greedy request walks along the target's choices and takes no noise; a sampled one takes
    two uniforms.
    """
    proposal = case.proposal
    if case.params.greedy:
        return _walk(case, case.logits.argmax(-1).tolist())
    sound = _sound(case.logits)
    target = probabilities(case.logits, case.params)
    # Any distribution will do in place of none: the reply can't pass a row that is broken.
    target = target.where(sound.unsqueeze(-1), 1.0 / target.shape[-1])
    law = tree_rule(proposal.tokens, _parents(case), target, proposal.probs)
    device = case.logits.device
    noise = torch.rand(2, generator=case.generator, device=device, dtype=torch.float64)
    end = draw_at(law.accepted.unsqueeze(0), noise[:1])
    following = draw_at(law.following[end], noise[1:])
    at, token = torch.cat([end, following]).tolist()
    return _verdict(case, path_to(at - 1, _parents(case)), token)


def match_tree(case: Case, seed: int, first: int) -> Verdict:
    """Verifier one tree by position-keyed exact match (see `specstream.speculation.exact_match`).

    The noise belongs to the depth, so a token doesn't depend on the shape of the tree it came with.
    ``first`` is the absolute position of the token after the committed ones.
    """
    if case.params.greedy:
        return _walk(case, case.logits.argmax(-1).tolist())
    parents, choices = _parents(case), []
    # Row by row, as in `match_batch`: the last bits must not depend on how many rows there are.
    for node, row in enumerate(torch.split(case.logits, 1), start=-1):
        depth = len(path_to(node, parents))
        choices.append(gumbel_max(probabilities(row, case.params), seed, first + depth))
    return _walk(case, torch.cat(choices).tolist())


def path_to(node: int, parents: Sequence[int]) -> tuple[int, ...]:
    """The nodes from the root's child down to ``node``, which is the last; of -1: none."""
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return tuple(reversed(path))


def _walk(case: Case, choices: list[int]) -> Verdict:
    """Follow the target's own choices as far as the tree has them; ``choices[at]`` is row at's."""
    tokens, parents = case.proposal.tokens.tolist(), _parents(case)
    node = -1
    while True:
        wanted = choices[node + 1]
        children = (j for j, p in enumerate(parents) if p == node and tokens[j] == wanted)
        child = next(children, None)
        if child is None:
            return _verdict(case, path_to(node, parents), wanted)
        node = child


def _verdict(case: Case, path: tuple[int, ...], token: int) -> Verdict:
    tokens = case.proposal.tokens.tolist()
    broken = tuple(row for row, sound in enumerate(_sound(case.logits).tolist()) if not sound)
    return Verdict(len(path), token, path, (*(tokens[node] for node in path), token), broken)


def _sound(logits: Tensor) -> Tensor:
    """Which rows are numbers: the largest logit is NaN or infinite exactly where there is no choice."""
    return logits.amax(-1).isfinite()


def _parents(case: Case) -> Sequence[int]:
    proposal = case.proposal
    return range(-1, proposal.length - 1) if proposal.parents is None else proposal.parents
