"""Trees from marginals: the likeliest paths by the product of their tokens' probabilities."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import torch
from torch import Tensor

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
    plain = _plain(rows, head, top_k) if request.params.plain_logits else None
    tokens, parents, levels, paths = list[int](), list[int](), list[int](), list[list[int]]()
    known: list[tuple[float, int, int, int]] = []  # -score, order, parent, rank
    choices = dict[int, _Choices]()  # by node: the tokens that its children may have
    scores: dict[int, float] = {-1: 0.0}

    def add(parent: int, rank: int) -> None:
        if rank < len(choices[parent]):
            score = scores[parent] + choices[parent][rank][0]
            heapq.heappush(known, (-score, len(tokens), parent, rank))

    def open_(parent: int) -> None:
        level = 0 if parent < 0 else levels[parent] + 1
        if level >= rows.shape[0] or (parent >= 0 and tokens[parent] in eos_ids):
            return
        path = [] if parent < 0 else paths[parent]
        choices[parent] = (
            _processed(request, rows[level], head, top_k, path) if plain is None else plain[level]
        )
        add(parent, 0)

    open_(-1)
    while known and len(tokens) < size:
        score, _, parent, rank = heapq.heappop(known)
        node = len(tokens)
        scores[node] = -score
        tokens.append(choices[parent][rank][1])
        parents.append(parent)
        levels.append(0 if parent < 0 else levels[parent] + 1)
        paths.append([*(paths[parent] if parent >= 0 else ()), tokens[node]])
        add(parent, rank + 1)
        if len(tokens) < size:
            open_(node)
    if not tokens:
        return Proposal.empty(rows.device)
    ids = torch.tensor(tokens, device=rows.device)
    return Proposal(ids, None, tuple(parents), source="medusa")


def _plain(rows: Tensor, head: MedusaHead, top_k: int) -> list[_Choices]:
    """The choices of each level, which don't depend on the path before."""
    best = rows.float().log_softmax(-1).topk(min(top_k, rows.shape[-1]))
    ids = best.indices if head.ids is None else head.ids[best.indices]
    values = zip(best.values.tolist(), ids.tolist(), strict=True)
    return [_sound(chances, tokens) for chances, tokens in values]


def _processed(
    request: SpecRequest, row: Tensor, head: MedusaHead, top_k: int, path: Sequence[int]
) -> _Choices:
    """The choices after a path, by the request's logits processors."""
    logits = request.process(head.whole(row), path).float().log_softmax(-1)
    best = logits.topk(min(top_k, logits.shape[-1]))
    return _sound(best.values.tolist(), best.indices.tolist())


def _sound(chances: Sequence[float], tokens: Sequence[int]) -> _Choices:
    """Drop tokens of probability 0 and, as NaN compares false, those of damaged weights."""
    return [(c, t) for c, t in zip(chances, tokens, strict=True) if c > -math.inf]
