"""Trees from marginals: the likeliest paths by the product of their tokens' probabilities."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from specstream.model.heads.base import likeliest
from specstream.model.heads.medusa import MedusaHead
from specstream.speculation.proposal import Proposal, SpecRequest

__all__ = ["grow"]

_Choices = Sequence[tuple[float, int]]  # log probability and id, likeliest first


def grow(
    request: SpecRequest,
    rows: Tensor,
    head: MedusaHead,
    top_k: int,
    size: int,
    eos_ids: frozenset[int],
) -> Proposal:
    """Grow the tree of the likeliest ``size`` nodes, each with at most ``top_k`` children.

    A node's first child and next sibling are no likelier than the node itself. So a best-first search,
    which always adds the likeliest of the known candidates, finds the likeliest nodes of all, parents
    and likelier siblings first.

    Args:
        request: If it has penalties, bans or a grammar, the row after each path is processed separately.
        rows: ``[levels, draft vocabulary]``: each head's logits.
        head: Maps draft ids to the target's.
        top_k: The most children of a node.
        size: The most nodes.
        eos_ids: Token ids after which nothing is drafted.
    """
    plain = None
    if request.params.plain_logits:  # the choices of a level don't depend on the path before
        plain = _choices(*likeliest(rows, top_k, head.ids))
    tokens, parents = list[int](), list[int]()
    known: list[tuple[float, int, int, int]] = []  # -score, order, parent, rank
    # By node, -1 for the committed text: its path, log probability, and the children that it may have.
    nodes = dict[int, tuple[list[int], float, _Choices]]()

    def add(parent: int, rank: int) -> None:
        _, score, choices = nodes[parent]
        if rank < len(choices):
            heapq.heappush(known, (-(score + choices[rank][0]), len(tokens), parent, rank))

    def after(path: list[int]) -> _Choices:
        level = len(path)
        if level >= rows.shape[0] or (path and path[-1] in eos_ids):
            return ()
        if plain is not None:
            return plain[level]
        processed = request.process(head.whole(rows[level]), path)
        return _choices(*likeliest(processed.unsqueeze(0), top_k))[0]

    nodes[-1] = [], 0.0, after([])
    add(-1, 0)
    while known and len(tokens) < size:
        score, _, parent, rank = heapq.heappop(known)
        path, _, choices = nodes[parent]
        node, token = len(tokens), choices[rank][1]
        tokens.append(token)
        parents.append(parent)
        add(parent, rank + 1)
        if len(tokens) < size:
            nodes[node] = [*path, token], -score, after([*path, token])
            add(node, 0)
    if not tokens:
        return Proposal.empty(rows.device)
    ids = torch.tensor(tokens, device=rows.device)
    return Proposal(ids, None, tuple(parents), source="medusa")


def _choices(chances: Tensor, ids: Tensor) -> list[_Choices]:
    """Each row's choices, without tokens of probability 0 or NaN, which compares false."""
    each = zip(chances.tolist(), ids.tolist(), strict=True)
    return [[(c, t) for c, t in zip(*row, strict=True) if c > -math.inf] for row in each]
