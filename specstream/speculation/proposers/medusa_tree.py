"""Trees from marginals: the likeliest paths by the product of their tokens' probabilities."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from specstream.model.heads.base import likeliest
from specstream.model.heads.medusa import MedusaHead
from specstream.model.sampling import free_to_look
from specstream.model.transfer import to_device
from specstream.speculation.proposal import Proposal, SpecRequest

__all__ = ["TreeShape", "grow_all"]

_Choices = Sequence[tuple[float, int]]  # log probability and id, likeliest first


@dataclass(frozen=True, slots=True)
class TreeShape:
    """The limits of a tree.

    Attributes:
        top_k: The most children of a node.
        size: Gives the most nodes of a tree of so many levels.
        eos_ids: Token ids after which nothing is drafted.
    """

    top_k: int
    size: Callable[[int], int]
    eos_ids: frozenset[int]


def grow_all(
    asked: Sequence[tuple[SpecRequest, Tensor]], head: MedusaHead, shape: TreeShape
) -> list[Proposal]:
    """Grow a tree for each request from its heads' logits ``[levels, draft vocabulary]``.

    On a device, one transfer serves all requests. There the heads after the first one are followed as
    they are, without a request's penalties and bans, which depend on the path before.
    """
    levels: list[list[_Choices] | None] = []
    if free_to_look(asked[0][1]):
        for request, rows in asked:
            plain = request.params.plain_logits
            found = _both(*likeliest(rows, shape.top_k, head.ids)) if plain else None
            levels.append(None if found is None else _choices(*found))
    else:
        best = [_best_on_device(request, rows, head, shape) for request, rows in asked]
        flat = iter(torch.cat([one.double().reshape(-1) for pair in best for one in pair]).tolist())
        for pair in best:
            told = [[list(islice(flat, one.shape[1])) for _ in range(one.shape[0])] for one in pair]
            levels.append(_choices(told[0], [list(map(int, row)) for row in told[1]]))
    each = zip(asked, levels, strict=True)
    return [_grow(request, rows, head, shape, known) for (request, rows), known in each]


def _best_on_device(
    request: SpecRequest, rows: Tensor, head: MedusaHead, shape: TreeShape
) -> tuple[Tensor, Tensor]:
    """Log probabilities and ids of each level's likeliest tokens, ``[levels, top_k]``."""
    found = likeliest(rows, shape.top_k, head.ids)
    if request.params.plain_logits:
        return found
    first = likeliest(request.process(head.whole(rows[0]), ()).unsqueeze(0), shape.top_k)
    later = likeliest(rows[1:], shape.top_k, head.ids)
    return torch.cat([first[0], later[0]]), torch.cat([first[1], later[1]])


def _grow(
    request: SpecRequest,
    rows: Tensor,
    head: MedusaHead,
    shape: TreeShape,
    known_levels: Sequence[_Choices] | None,
) -> Proposal:
    """Grow the tree of the likeliest nodes.

    A node's first child and next sibling are no likelier than the node itself. So a best-first search,
    which always adds the likeliest of the known candidates, finds the likeliest nodes of all, parents
    and likelier siblings first.

    Args:
        request: If it has penalties, bans or a grammar, the row after each path is processed separately
            (on a CPU).
        rows: ``[levels, draft vocabulary]``: each head's logits.
        head: Maps draft ids to the target's.
        shape: The tree's limits.
        known_levels: Each level's choices, if they don't depend on the path before.
    """
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
        if level >= rows.shape[0] or (path and path[-1] in shape.eos_ids):
            return ()
        if known_levels is not None:
            return known_levels[level]
        processed = request.process(head.whole(rows[level]), path)
        return _choices(*_both(*likeliest(processed.unsqueeze(0), shape.top_k)))[0]

    nodes[-1] = [], 0.0, after([])
    add(-1, 0)
    while known and len(tokens) < shape.size(rows.shape[0]):
        score, _, parent, rank = heapq.heappop(known)
        path, _, choices = nodes[parent]
        node, token = len(tokens), choices[rank][1]
        tokens.append(token)
        parents.append(parent)
        add(parent, rank + 1)
        if len(tokens) < shape.size(rows.shape[0]):
            nodes[node] = [*path, token], -score, after([*path, token])
            add(node, 0)
    if not tokens:
        return Proposal.empty(rows.device)
    ids = to_device(tokens, rows.device)
    return Proposal(ids, None, tuple(parents), source="medusa")


def _both(chances: Tensor, ids: Tensor) -> tuple[list[list[float]], list[list[int]]]:
    return chances.tolist(), ids.tolist()


def _choices(chances: Sequence[Sequence[float]], ids: Sequence[Sequence[int]]) -> list[_Choices]:
    """Each row's choices, without tokens of probability 0 or NaN, which compares false."""
    each = zip(chances, ids, strict=True)
    return [[(c, t) for c, t in zip(*row, strict=True) if c > -math.inf] for row in each]
