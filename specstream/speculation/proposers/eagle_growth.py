"""The chain or dynamic tree that an EAGLE head drafts for one request in one round.

Both are grown level by level. `EagleProposer` runs the head once a level for all requests; the classes
here decide which tokens the next level reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from specstream.model.heads.base import FeatureHead, likeliest, spread
from specstream.model.tree import Tree
from specstream.speculation.proposal import Proposal, SpecRequest
from specstream.speculation.proposers.drafting import Drafting

__all__ = ["Chain", "Frontier", "Growth", "Seen", "TreeGrowth"]


class Frontier(NamedTuple):
    """Inputs of the next head pass for one request.

    Attributes:
        tokens: ``[b]`` int64 ids of the target.
        features: ``[b, hidden]``, of the tokens before those.
        tree: The tree whose last nodes the tokens are; None: a chain.
    """

    tokens: Tensor
    features: Tensor
    tree: Tree | None = None


class Seen(NamedTuple):
    """Results of a head pass for one request's frontier.

    Attributes:
        logits: ``[b, draft vocabulary]``.
        features: ``[b, hidden]``, which the next level reads.
        choices: ``[b, k]`` ids of the likeliest tokens, likeliest first.
        told: Log probabilities and ids of ``choices`` on the host; None: they were not read.
    """

    logits: Tensor
    features: Tensor
    choices: Tensor
    told: tuple[list[list[float]], list[list[int]]] | None


@dataclass(slots=True)
class Growth:
    """A draft that is being grown: the common part of chains and trees.

    Attributes:
        request: The request that is drafted for.
        count: The most tokens of a chain, or levels of a tree.
        head: The EAGLE head.
        vocab_size: Width of the target's logits.
        eos_ids: Token ids after which nothing is drafted; they are noticed only if tokens are read.
        go_on: See `Task.go_on`; None: there is no such rule.
        frontier: Inputs of the next head pass; None: the draft is complete.
        read: Rows of committed tokens that had to be made first, beyond the one or two of any round.
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
        """How many of each row's likeliest tokens a head pass has to return."""
        return 1

    def widened(self, rows: Tensor, rest: float) -> Tensor:
        """Spread ``[b, draft vocabulary]`` to ``[b, V]``, ``rest`` for tokens that can't be drafted."""
        return spread(rows, self.head.ids, self.vocab_size, rest)


@dataclass(slots=True)
class Chain(Growth):
    """A chain: greedy requests take the likeliest token, sampled ones draw it and keep its q.

    Attributes:
        written: The chain so far.
    """

    written: Drafting = field(init=False)

    def __post_init__(self) -> None:
        self.written = Drafting(self.request, self.count, self.go_on)

    @property
    def confidences(self) -> list[float]:
        """The head's probabilities of the tokens that ``go_on`` was called with."""
        return self.written.confidences

    def take(self, seen: Seen) -> None:
        """Choose the next token from a head pass, and set or clear the frontier."""
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
        """The chain as a proposal."""
        return self.written.proposal(self.head.device, self.head.kind)


@dataclass(slots=True)
class TreeGrowth(Growth):
    """The dynamic tree of EAGLE-2 (arXiv 2406.16858); its nodes are deterministic.

    The nodes of a level that the head reads next are those with the ``top_k`` likeliest paths; each gets
    its ``top_k`` likeliest tokens as children. The proposal is the likeliest ``size`` of all nodes,
    whether or not the head has read them. A node whose path is less likely than ``least`` costs more in
    the target pass than it brings and isn't added, except for the first, so that a tree isn't empty.

    Attributes:
        top_k: Children of a node, and nodes that the head reads a level.
        size: The most nodes of the proposal.
        least: The least path probability of a node.
        confidences: The masses of levels that ``go_on`` was called with.
        tokens: Each node's token id.
        parents: Each node's parent, -1 for the root.
        scores: Each node's log probability of its path.
        level: The level of the children that are added next, from 0.
        beam: The nodes that the last head pass read; -1 stands for the committed text.
    """

    top_k: int = 4
    size: int = 16
    least: float = 0.0
    confidences: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    level: int = 0
    beam: list[int] = field(default_factory=lambda: [-1])
    # The tree of the nodes in the head's cache: each one's parent row, and each node's own row.
    _rows: list[int] = field(default_factory=list)
    _row_of: dict[int, int] = field(default_factory=lambda: {-1: -1})
    _mass: float = 1.0  # of the level before: the sum of its nodes' path probabilities

    @property
    def choices(self) -> int:
        """See `Growth`."""
        return self.top_k

    def take(self, seen: Seen) -> None:
        """Add the children of the nodes that were read; choose those that the next pass reads."""
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
        """Add the children of the beam; return, for each child, its parent's row in ``seen``."""
        source = list[int]()
        for row, (node, children) in enumerate(zip(self.beam, self._children(seen), strict=True)):
            score = self.scores[node] if node >= 0 else 0.0
            for chance, token in children:
                worse = self.tokens and math.exp(score + chance) < self.least
                if chance > -math.inf and not worse:  # false for NaN, too
                    self.append(token, node, score + chance)
                    source.append(row)
        return source

    def append(self, token: int, parent: int, score: float) -> None:
        """Add a node."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores.append(score)

    def path(self, node: int) -> list[int]:
        """The tokens on the path from the first level to a node, inclusive; empty for -1."""
        path = list[int]()
        while node >= 0:
            path.append(self.tokens[node])
            node = self.parents[node]
        return path[::-1]

    def _goes_on(self, mass: float) -> bool:
        """Ask ``go_on`` about a level; ``mass`` is its share of the mass of the level before."""
        if self.go_on is None:
            return True
        self.confidences.append(mass)
        return self.go_on(mass)

    def _children(self, seen: Seen) -> Iterator[list[tuple[float, int]]]:
        """For each node of the beam, log probabilities and ids of the likeliest tokens after it."""
        assert seen.told is not None
        if self.request.params.plain_logits:
            for chances, ids in zip(*seen.told, strict=True):
                yield list(zip(chances, ids, strict=True))[: self.top_k]
            return
        for node, row in zip(self.beam, self.widened(seen.logits, -math.inf), strict=True):
            best = likeliest(self.request.process(row, self.path(node)), self.top_k)
            yield list(zip(*(one.tolist() for one in best), strict=True))

    def proposal(self) -> Proposal:
        """The likeliest ``size`` nodes; their parents are among them, being at least as likely."""
        order = sorted(range(len(self.tokens)), key=lambda node: -self.scores[node])
        kept = sorted(order[: self.size])
        if not kept:
            return Proposal.empty(self.head.device)
        place = {node: index for index, node in enumerate(kept)} | {-1: -1}
        parents = tuple(place[self.parents[node]] for node in kept)
        tokens = torch.tensor([self.tokens[node] for node in kept], device=self.head.device)
        return Proposal(tokens, None, parents, source=self.head.kind)
