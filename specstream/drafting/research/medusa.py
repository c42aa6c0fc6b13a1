"""Medusa: heads on the last hidden state draft several tokens at once (arXiv 2401.10774)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

import torch
from torch import Tensor

from specstream.drafting.candidate import EngineParts, Task, TaskProposal, TaskProposer
from specstream.drafting.optional import States
from specstream.drafting.policy.records import Candidate, Offer
from specstream.drafting.proposal import Capabilities, Proposal, SpecRequest
from specstream.drafting.rows import draft_ready, take_chain
from specstream.methods import MedusaProposerConfig
from specstream.model.heads.base import likeliest
from specstream.model.heads.research.medusa import MedusaHead
from specstream.model.numerics import to_device
from specstream.model.tokens.sampling import free_to_look

__all__ = ["MedusaProposer", "TreeShape", "build", "grow_all"]

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


class MedusaProposer(TaskProposer):
    """Drafts chains (``top_k`` 1) or trees from the heads' marginals; one head pass a round for all.

    A head doesn't know which tokens were drafted before its own, so a tree consists of the paths whose
    product of the heads' probabilities is largest. A tree's nodes are deterministic. Trees are grown on
    the host, which waits for the device once a round.

    Attributes:
        kept: By slot the state from which the last token was predicted, ``[hidden]``, before the
            target's final norm, and the number of tokens before that last token.
    """

    name = "medusa"

    def __init__(
        self, config: MedusaProposerConfig, head: MedusaHead, eos_ids: frozenset[int] = frozenset()
    ) -> None:
        self._config, self._head, self._eos_ids = config, head, eos_ids
        self.most = min(config.depth, head.heads)
        self._tree = config.top_k > 1
        self._looks = head.device.type == "cpu"
        self.kept: dict[int, tuple[Tensor, int]] = {}
        self.capabilities = Capabilities(head.depths, trees=self._tree)
        self.candidate = Candidate("medusa", "the Medusa heads", passes="one")

    def offer(self, request: SpecRequest, budget: int) -> Offer:
        """Offer as many levels as there are heads, once the last token's state was read."""
        if self._state(request) is None:
            return Offer(0)
        levels = min(budget, self.most)
        nodes = [self._size(level) for level in range(1, levels + 1)] if self._tree else ()
        return Offer(levels, nodes=nodes)

    @torch.inference_mode()
    def draft(self, tasks: Sequence[Task]) -> list[TaskProposal]:
        """Run the heads once for all tasks, then make each one's chain or tree."""
        return draft_ready(tasks, self._state, self._chains_or_trees, self._head.device)

    def _chains_or_trees(self, known: Sequence[tuple[Task, Tensor]]) -> list[TaskProposal]:
        deepest = min(self.most, max(task.count for task, _ in known))
        normed = self._head.normed(torch.stack([state for _, state in known]))
        each = [
            (task, rows[: task.count])
            for (task, _), rows in zip(known, self._head(normed, deepest).unbind(1), strict=True)
        ]
        if not self._tree:
            return [
                take_chain(task, self._head.whole(rows), looks=self._looks, source=self.name)
                for task, rows in each
            ]
        shape = TreeShape(self._config.top_k, self._size, self._eos_ids)
        requests = [(task.request, rows) for task, rows in each]
        return [TaskProposal(tree, (), 1) for tree in grow_all(requests, self._head, shape)]

    def _state(self, request: SpecRequest) -> Tensor | None:
        state, end = self.kept.get(request.slot, (None, 0))
        return state if end == len(request.token_ids) - 1 else None

    def _size(self, depth: int) -> int:
        """The most nodes of a tree of ``depth`` levels."""
        return min(self._config.nodes, self._config.top_k * depth)

    @torch.inference_mode()
    def rehearse(self) -> None:
        """Run the heads once for one request, and wait for the device."""
        head = self._head
        state = torch.zeros(1, head.shape.hidden, dtype=head.dtype, device=head.device)
        likeliest(head(head.normed(state), self.most), self._config.top_k)[0].tolist()

    def read(self, requests: Sequence[SpecRequest], states: Sequence[States]) -> None:
        """Keep a copy of each request's last state: a view would keep the whole pass's states alive."""
        for request, one in zip(requests, states, strict=True):
            count = one.states.shape[0]
            if count:
                self.kept[request.slot] = one.states[-1, 0].clone(), one.start + count

    def release(self, slot: int) -> None:
        """Drop the slot's state."""
        self.kept.pop(slot, None)


def build(config: MedusaProposerConfig, parts: EngineParts) -> MedusaProposer:
    """Build the proposer of the Medusa heads that were loaded.

    Raises:
        ConfigError: none were loaded.
    """
    return MedusaProposer(config, cast(MedusaHead, parts.head("medusa")), parts.eos_ids)
