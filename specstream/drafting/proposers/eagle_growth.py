"""The chain or dynamic tree that an EAGLE head drafts for one request in one round.

Both are grown level by level. `EagleProposer` runs the head once a level for all requests; the classes
here decide which tokens the next level reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from specstream.drafting.chain import Drafting, Widened
from specstream.drafting.proposal import Proposal, SpecRequest
from specstream.model.heads.base import Level, likeliest
from specstream.model.numerics import to_device
from specstream.model.tokens.sampling import free_to_look
from specstream.model.tree import Tree

__all__ = ["Chain", "Told", "TreeGrowth"]

Told = tuple[list[list[float]], list[list[int]]]
"""`Level.chances` and `Level.choices` on the host."""


@dataclass(slots=True, kw_only=True)
class Chain(Drafting):
    """A chain: greedy requests take the likeliest token, sampled ones draw it and keep its q.

    Attributes:
        features: ``[n, hidden]``, of the tokens before each of ``unread``.
    """

    choices: ClassVar[int] = 1  # as in `TreeGrowth`
    tree: ClassVar[None] = None
    features: Tensor | None = None

    def ask(self, level: Level) -> tuple[Tensor, Tensor]:
        """See `TreeGrowth.ask`."""
        return level.chances, level.choices

    def grow(self, level: Level, told: Told | None) -> None:
        """As `TreeGrowth.grow`, by one token; None: tokens were not read on the host."""
        params, self.features = self.request.params, level.features
        if params.greedy and params.plain_logits:
            drawn = confidence = None
            if told is not None:
                drawn, confidence = told[1][0][0], math.exp(told[0][0][0])
            self.take(level.choices[0, :1], drawn, confidence)
        else:
            self.choose(level.logits, looks=told is not None)


@dataclass(slots=True)
class TreeGrowth:
    """The dynamic tree of EAGLE-2 (arXiv 2406.16858); its nodes are deterministic.

    The nodes of a level that the head reads next are those with the ``top_k`` likeliest paths; each gets
    its ``top_k`` likeliest tokens as children. The proposal is the likeliest ``size`` of all nodes,
    whether or not the head has read them. A node whose path is less likely than ``least`` costs more in
    the target pass than it brings and isn't added, except for the first, so that a tree isn't empty.

    Attributes:
        request: The request that is drafted for.
        count: The most levels.
        go_on: See `Task.go_on`; None: there is no such rule.
        ends: Token ids after which nothing is drafted.
        ids: ``[draft vocabulary]``, each draft token's id in the target; None: the ids are the same.
        widened: See `Widened`.
        unread: ``[b]`` int64, the tokens that the next head pass reads; None: the tree is complete.
        features: ``[b, hidden]``, of the tokens before those.
        tree: The tree whose last nodes they are; None: they are committed tokens.
        read: Rows of committed tokens that had to be made first, beyond the one or two of any round.
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

    request: SpecRequest
    count: int
    go_on: Callable[[float], bool] | None = None
    ends: frozenset[int] = field(kw_only=True)
    ids: Tensor | None = field(kw_only=True)
    widened: Widened = field(kw_only=True)
    unread: Tensor | None = None
    features: Tensor | None = None
    tree: Tree | None = None
    read: int = 0
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
        """How many of each row's likeliest tokens a head pass has to return."""
        return self.top_k

    def ask(self, level: Level) -> tuple[Tensor, Tensor]:
        """Return what the host has to read of a level: numbers and token ids, ``[b, k]`` each."""
        if self.request.params.plain_logits:
            return level.chances, level.choices
        wide = zip(self.widened(level.logits, -math.inf), self.beam, strict=True)
        rows = torch.stack([self.request.process(row, self.path(node)) for row, node in wide])
        return likeliest(rows, self.top_k)

    def grow(self, level: Level, told: Told | None) -> None:
        """Add the children of the nodes that were read; choose those that the next pass reads.

        Args:
            level: The rows of these nodes in the results of a head pass.
            told: The likeliest tokens of these rows.
        """
        self.unread, first = None, len(self.tokens)
        source = self.add(level, told)
        self.level += 1
        mass = math.fsum(map(math.exp, self.scores[first:]))
        more = mass > 0.0 and self._goes_on(min(1.0, mass / self._mass))
        self._mass = mass
        able = [n for n in range(first, len(self.tokens)) if self.tokens[n] not in self.ends]
        beam = sorted(able, key=lambda node: -self.scores[node])[: self.top_k]
        if self.level >= self.count or not beam or not more:
            return
        self.beam = beam
        for node in beam:
            self._row_of[node] = len(self._rows)
            self._rows.append(self._row_of[self.parents[node]])
        both = [source[node - first] for node in beam], [self.tokens[node] for node in beam]
        rows, self.unread = to_device(both, level.features.device).unbind()
        self.features, self.tree = level.features.index_select(0, rows), Tree(tuple(self._rows))

    def add(self, level: Level, told: Told | None) -> list[int]:
        """Add the children of the beam; return, for each child, its parent's row in ``level``."""
        source, each = list[int](), self._children(level, told)
        for row, (node, children) in enumerate(zip(self.beam, each, strict=True)):
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

    def _children(self, level: Level, told: Told | None) -> Iterator[list[tuple[float, int]]]:
        """For each node of the beam, log probabilities and ids of the likeliest tokens after it."""
        if self.request.params.plain_logits or not free_to_look(level.logits):
            assert told is not None  # a tree is decided on the host
            for chances, ids in zip(*told, strict=True):
                yield list(zip(chances, ids, strict=True))[: self.top_k]
            return
        for node, row in zip(self.beam, self.widened(level.logits, -math.inf), strict=True):
            best = likeliest(self.request.process(row, self.path(node)), self.top_k)
            yield list(zip(*(one.tolist() for one in best), strict=True))

    def proposal(self, device: torch.device, source: str) -> Proposal:
        """The likeliest ``size`` nodes; their parents are among them, being at least as likely."""
        order = sorted(range(len(self.tokens)), key=lambda node: -self.scores[node])
        kept = sorted(order[: self.size])
        if not kept:
            return Proposal.empty(device)
        place = {node: index for index, node in enumerate(kept)} | {-1: -1}
        parents = tuple(place[self.parents[node]] for node in kept)
        tokens = to_device([self.tokens[node] for node in kept], device)
        return Proposal(tokens, None, parents, source=source)
