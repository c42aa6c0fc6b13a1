"""What an EAGLE head writes for one request in one round: a chain, or a dynamic tree.

Both are grown level by level. `EagleProposer` runs the head once a level for all requests; here is
decided what the next level reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from specstream.model.heads.base import FeatureHead, spread
from specstream.model.tree import Tree
from specstream.speculation.proposal import Proposal, SpecRequest
from specstream.speculation.proposers.drafting import Drafting

__all__ = ["Chain", "Frontier", "Growth", "Seen", "TreeGrowth"]


class Frontier(NamedTuple):
    """What the next pass reads: tokens ``[b]``, features ``[b, hidden]``, and the tree they are in."""

    tokens: Tensor
    features: Tensor
    tree: Tree | None = None


class Seen(NamedTuple):
    """What a pass gave for a request's frontier.

    Attributes:
        logits: ``[b, draft vocabulary]``.
        features: ``[b, hidden]``.
        choices: ``[b, k]`` ids of the likeliest tokens, likeliest first.
        told: Their log probabilities and their ids on the host; None: nobody looks.
    """

    logits: Tensor
    features: Tensor
    choices: Tensor
    told: tuple[list[list[float]], list[list[int]]] | None


@dataclass(slots=True)
class Growth:
    """What both have in common.

    Attributes:
        request: Whose.
        count: Tokens of a chain, levels of a tree, at most.
        head: Maps draft ids to the target's.
        vocab_size: Width of the target's logits.
        eos_ids: Ids behind which nothing is drafted, where they are looked at.
        go_on: See `Task.go_on`; None: never asked.
        frontier: What the next pass reads; None: nothing more.
        read: Rows of committed tokens that were read beyond the one or two of any round.
    """

    request: SpecRequest
    count: int
    head: FeatureHead
    vocab_size: int
    eos_ids: frozenset[int]
    go_on: Callable[[float], bool] | None = None
    frontier: Frontier | None = None
    read: int = 0

    @property
    def choices(self) -> int:
        """How many of a row's likeliest tokens it looks at."""
        return 1

    def widened(self, rows: Tensor, rest: float) -> Tensor:
        """``[b, draft vocabulary]`` to ``[b, V]``, ``rest`` where nothing can be drafted."""
        return spread(rows, self.head.ids, self.vocab_size, rest)


@dataclass(slots=True)
class Chain(Growth):
    """One token after another; sampled requests draw them, and q says so.

    Attributes:
        written: The tokens.
    """

    written: Drafting = field(init=False)

    def __post_init__(self) -> None:
        self.written = Drafting(self.request, self.count, self.go_on)

    @property
    def confidences(self) -> list[float]:
        """The head's probability of each token, as far as ``go_on`` was asked."""
        return self.written.confidences

    def take(self, seen: Seen) -> None:
        """Take the next token; decide whether the chain goes on."""
        params = self.request.params
        if params.greedy and params.plain_logits:
            drawn = confidence = None
            if seen.told is not None:
                drawn, confidence = seen.told[1][0][0], math.exp(seen.told[0][0][0])
            token = seen.choices[0, :1]
            goes_on = self.written.take(token, drawn, confidence, self.eos_ids)
        else:
            looks, ends = seen.told is not None, self.eos_ids
            goes_on = self.written.choose(seen.logits, looks=looks, ends=ends, widened=self.widened)
        self.frontier = Frontier(self.written.tokens[-1], seen.features) if goes_on else None

    def proposal(self) -> Proposal:
        """What was written."""
        return self.written.proposal(self.head.device, self.head.kind)


@dataclass(slots=True)
class TreeGrowth(Growth):
    """The dynamic tree of EAGLE-2 (arXiv 2406.16858); its nodes are deterministic.

    A level's nodes are the likeliest ``top_k`` paths among the children of the level before, ``top_k``
    of each. In the end the likeliest ``size`` of all children stay, whether or not they were grown. A
    path less likely than ``least`` doesn't pay for its node: only the very likeliest node stays then.
    """

    top_k: int = 4
    size: int = 16
    least: float = 0.0
    confidences: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    level: int = 0  # of the children that come next
    beam: list[int] = field(default_factory=lambda: [-1])  # the nodes that the last pass read
    _rows: list[int] = field(default_factory=list)  # of all read nodes, their parents' rows
    _row_of: dict[int, int] = field(default_factory=lambda: {-1: -1})
    _mass: float = 1.0  # of the level before

    @property
    def choices(self) -> int:
        """See `Growth`."""
        return self.top_k

    def take(self, seen: Seen) -> None:
        """Add the children of the nodes that were read; choose which of them are read next."""
        self.frontier, first = None, len(self.tokens)
        source = self.add(seen)
        self.level += 1
        mass = math.fsum(map(math.exp, self.scores[first:]))
        more = mass > 0.0 and self._goes_on(min(1.0, mass / self._mass))
        self._mass = mass
        able = [n for n in range(first, len(self.tokens)) if self.tokens[n] not in self.eos_ids]
        beam = sorted(able, key=lambda node: -self.scores[node])[: self.top_k]
        if self.level >= self.count or not beam or not more:
            return
        self.beam = beam
        for node in beam:
            self._row_of[node] = len(self._rows)
            self._rows.append(self._row_of[self.parents[node]])
        device = seen.features.device
        rows = torch.tensor([source[node - first] for node in beam], device=device)
        ids = torch.tensor([self.tokens[node] for node in beam], device=device)
        self.frontier = Frontier(ids, seen.features.index_select(0, rows), Tree(tuple(self._rows)))

    def add(self, seen: Seen) -> list[int]:
        """Add children; of each, the row of what was seen that its parent is."""
        source = list[int]()
        for row, (node, children) in enumerate(zip(self.beam, self._children(seen), strict=True)):
            score = self.scores[node] if node >= 0 else 0.0
            for chance, token in children:
                worse = self.tokens and math.exp(score + chance) < self.least
                if chance > -math.inf and not worse:  # not for NaN, either
                    self.append(token, node, score + chance)
                    source.append(row)
        return source

    def append(self, token: int, parent: int, score: float) -> None:
        """Add a node."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores.append(score)

    def path(self, node: int) -> list[int]:
        """The tokens from the first level down to a node; of -1: none."""
        path = list[int]()
        while node >= 0:
            path.append(self.tokens[node])
            node = self.parents[node]
        return path[::-1]

    def _goes_on(self, mass: float) -> bool:
        """Whether to draft more after a level of that mass, given the one before."""
        if self.go_on is None:
            return True
        self.confidences.append(mass)
        return self.go_on(mass)

    def _children(self, seen: Seen) -> Iterator[list[tuple[float, int]]]:
        """The likeliest tokens after each node that was read, with their log probabilities."""
        assert seen.told is not None
        if self.request.params.plain_logits:
            for chances, ids in zip(*seen.told, strict=True):
                yield list(zip(chances, ids, strict=True))[: self.top_k]
            return
        for node, row in zip(self.beam, self.widened(seen.logits, -math.inf), strict=True):
            processed = self.request.process(row, self.path(node)).float().log_softmax(-1)
            best = processed.topk(min(self.top_k, self.vocab_size))
            yield list(zip(best.values.tolist(), best.indices.tolist(), strict=True))

    def proposal(self) -> Proposal:
        """The likeliest nodes. A node is no likelier than its parent, so that no parent is missing."""
        order = sorted(range(len(self.tokens)), key=lambda node: -self.scores[node])
        kept = sorted(order[: self.size])
        if not kept:
            return Proposal.empty(self.head.device)
        place = {node: index for index, node in enumerate(kept)} | {-1: -1}
        parents = tuple(place[self.parents[node]] for node in kept)
        tokens = torch.tensor([self.tokens[node] for node in kept], device=self.head.device)
        return Proposal(tokens, None, parents, source=self.head.kind)


def widest(growths: Sequence[Growth]) -> int:
    """How many choices a pass must give for each row."""
    return max(one.choices for one in growths)
