"""EAGLE trees for sampled requests: the children of a node are drawn without replacement."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Protocol

import torch
from torch import Tensor

from specstream.drafting.noise import sibling_keys
from specstream.drafting.proposal import Proposal
from specstream.drafting.proposers.eagle_growth import Told, TreeGrowth
from specstream.model.heads.base import Level
from specstream.model.numerics import to_device
from specstream.model.tokens.noise import gumbel_top
from specstream.model.tokens.sampling import free_to_look, probabilities, without

__all__ = ["DrawnTree"]

_FIRST, _LATER = (0.2, 0.75), (0.05, 0.5)
"""Acceptance of a child that was drawn with probability q, as (base, slope) of ``base + slope * q``.

The first pair is for a node's first child, the second for later ones. Measured with SmolLM2's head at
temperature .8 over 15,000 draws: first children are accepted with probability .25 for q below .02, .57
around .5 and .95 above .95; second children with .11, .36 and .82. The bases here are below those of a
fit to these figures, because with a fit trees get more nodes than pay.
"""

_MIN_REST = 1e-5  # of a row's mass: from less no further child is drawn


class _Source(Protocol):
    """Where the next child of a node is drawn from."""

    def draw(self) -> tuple[int, int, float]:
        """Draw an index into the distribution; return it, its token id and its probability."""
        ...

    def without(self, index: int) -> _Source:
        """The source of the next sibling: the same distribution without the drawn index."""
        ...


@dataclass(slots=True)
class _Drawing:
    """Draws a child when it is asked for: on a CPU, where looking at the draw is free.

    Attributes:
        tree: The tree that draws.
        probs: ``[n]``, over the draft's vocabulary or the target's; 0 for earlier siblings.
    """

    tree: DrawnTree
    probs: Tensor

    def draw(self) -> tuple[int, int, float]:
        tree, ids = self.tree, self.tree.drawn_ids
        drawn = tree.request.draw(self.probs.unsqueeze(0), tree.position, ids)
        index = int(drawn)
        tree.drawn_from.append(self.probs)
        return index, index if ids is None else int(ids[index]), float(self.probs[index])

    def without(self, index: int) -> _Drawing:
        return _Drawing(self.tree, without(self.probs, index))


@dataclass(slots=True)
class _Drawn:
    """Reveals children that were drawn on the device, in their order.

    Whether another one is revealed is decided as if it were drawn only then: what isn't revealed has no
    influence.

    Attributes:
        tree: The tree that draws.
        row: The parent's row among all rows of the tree.
        chances: The probabilities of the drawn indices in the parent's distribution.
        indices: The indices, in the order in which they were drawn.
        ids: Their token ids.
        rank: How many were revealed.
    """

    tree: DrawnTree
    row: int
    chances: Sequence[float]
    indices: Sequence[int]
    ids: Sequence[int]
    rank: int = 0

    def draw(self) -> tuple[int, int, float]:
        at, left = self.rank, 1.0 - math.fsum(self.chances[: self.rank])
        self.tree.rows_drawn.append((self.row, self.indices[:at]))
        return self.indices[at], self.ids[at], min(1.0, self.chances[at] / max(left, _MIN_REST))

    def without(self, index: int) -> _Drawn:
        return replace(self, rank=self.rank + 1)


@dataclass(slots=True, eq=False)
class _Place:
    """A place where the tree can get a node: the next child of one parent.

    Attributes:
        row: The parent's row in the level's results.
        node: The parent.
        reached: Estimated probability that verification gets to this child.
        source: Where the child is drawn from.
        square: Sum of the squares of its probabilities, which is the mean of q over the draw.
        law: (base, slope) of the child's acceptance; see `_FIRST`.
        hope: Estimated probability that the child is accepted, averaged over all tokens that may be
            drawn; NaN from damaged weights.
    """

    row: int
    node: int
    reached: float
    source: _Source
    square: float
    law: tuple[float, float] = _FIRST
    hope: float = field(init=False)

    def __post_init__(self) -> None:
        self.hope = self.reached * (self.law[0] + self.law[1] * self.square)

    def after(self, index: int, q: float) -> tuple[float, _Place | None]:
        """Account for a drawn child of probability q.

        Returns:
            The estimated probability that it is accepted, and the place of its next sibling; None: too
            little mass is left for one.
        """
        accepted, left = self.law[0] + self.law[1] * q, 1.0 - q
        following = None
        if left > _MIN_REST:
            square = max(self.square - q * q, 0.0) / (left * left)
            reached = self.reached * (1.0 - accepted)
            rest = self.source.without(index)
            following = _Place(self.row, self.node, reached, rest, min(square, 1.0), _LATER)
        return self.reached * accepted, following


@dataclass(slots=True)
class DrawnTree(TreeGrowth):
    """A `TreeGrowth` whose nodes are drawn, so that the verifier can use their probabilities.

    Of the same number of nodes more are accepted than with the likeliest tokens, because sum min(p, q)
    is larger than p's mass on q's likeliest tokens (SpecInfer, arXiv 2305.09781; Sequoia, 2402.12374).

    A level gets at most ``top_k`` nodes. Each is drawn at the place where a child is likeliest to be
    accepted, as long as that probability is at least ``least``. Whether another child is drawn depends
    only on tokens drawn before, and every drawn token stays in the proposal: choosing among drawn tokens
    would bias the text. A tree that happens to be a chain is verified by the tree rule, too (see
    `checked`).

    On a CPU a child is drawn when its turn has come. On a device as many children as a level may have
    are drawn for each row at once, by the largest sums of log probability and Gumbel noise, which is
    drawing without replacement (Kool et al. 2019); so the host waits once a level for all requests.

    Attributes:
        drawn_from: For each node the distribution ``[n]`` that it was drawn from, on a CPU.
        rows_drawn: On a device, for each node its parent's row in ``levels`` and its earlier siblings.
        levels: On a device, the distributions ``[b, n]`` of each level's rows.
    """

    drawn_from: list[Tensor] = field(default_factory=list)
    rows_drawn: list[tuple[int, Sequence[int]]] = field(default_factory=list)
    levels: list[Tensor] = field(default_factory=list)

    @property
    def choices(self) -> int:
        """0: tokens are drawn from the logits, so a head pass needn't return the likeliest ones."""
        return 0

    @property
    def position(self) -> int:
        """The position of the children that are added next."""
        return len(self.request.token_ids) + self.level

    def grow(self, level: Level, told: Told | None) -> None:
        """As `TreeGrowth.grow`; the draft is complete once it has ``size`` nodes."""
        TreeGrowth.grow(self, level, told)
        if len(self.tokens) >= self.size:
            self.unread = None

    def add(self, level: Level, told: Told | None) -> list[int]:
        """See `TreeGrowth.add`."""
        if free_to_look(level.logits):
            places = list(self._places(self._distributions(level)))
        else:
            assert told is not None
            places = list(self._places_told(*told))
        source = list[int]()
        while places and len(source) < self.top_k and len(self.tokens) < self.size:
            place = max(places, key=attrgetter("hope"))
            if self.tokens and place.hope < self.least:
                break
            index, token, q = place.source.draw()
            chance, following = place.after(index, q)
            self.append(token, place.node, math.log(chance))
            source.append(place.row)
            places.remove(place)
            if following is not None:
                places.append(following)
        return source

    @property
    def drawn_ids(self) -> Tensor | None:
        """``[n]`` token ids that the rows' columns stand for; None: the target's vocabulary."""
        return self.ids if self.request.params.plain_logits else None

    def _distributions(self, level: Level) -> Tensor:
        """``[b, n]``: what children of the beam's nodes are drawn from."""
        rows, params = level.logits, self.request.params
        if not params.plain_logits:
            wide = zip(self.widened(rows, -math.inf), self.beam, strict=True)
            rows = torch.stack([self.request.process(row, self.path(node)) for row, node in wide])
        elif self.ids is None:
            rows = self.widened(rows, -math.inf)
        return probabilities(rows, params)

    def _places(self, probs: Tensor) -> Iterator[_Place]:
        """The first child's place of each node of the beam."""
        norms = torch.linalg.vector_norm(probs, dim=-1).tolist()
        for row, (node, norm) in enumerate(zip(self.beam, norms, strict=True)):
            yield from self._place(row, node, _Drawing(self, probs[row]), norm * norm)

    def _place(self, row: int, node: int, source: _Source, square: float) -> Iterator[_Place]:
        reached = math.exp(self.scores[node]) if node >= 0 else 1.0
        place = _Place(row, node, reached, source, square)
        if place.hope > 0.0:
            yield place

    def ask(self, level: Level) -> tuple[Tensor, Tensor]:
        """Draw on the device; see `TreeGrowth.ask`.

        Returns:
            Sums of squares of the distributions and probabilities of the drawn indices ``[b, 1 + k]``;
            these indices and their token ids ``[b, 2 * k]``.
        """
        probs = self._distributions(level)
        self.levels.append(probs)
        keys = sibling_keys(self.request, self.position, probs.shape[0])
        drawn = gumbel_top(probs, to_device(keys, probs.device), min(self.top_k, probs.shape[1]))
        ids = drawn if self.drawn_ids is None else self.drawn_ids[drawn]
        chances = torch.cat([probs.square().sum(-1, keepdim=True), probs.gather(1, drawn)], 1)
        return chances, torch.cat([drawn, ids], 1)

    def _places_told(
        self, chances: Sequence[Sequence[float]], drawn: Sequence[Sequence[int]]
    ) -> Iterator[_Place]:
        first = sum(probs.shape[0] for probs in self.levels[:-1])
        each = zip(self.beam, chances, drawn, strict=True)
        for row, (node, (square, *likely), both) in enumerate(each):
            count = len(likely)
            # A child of probability 0 can't be drawn: more were wanted than there are tokens.
            real = next((rank for rank, chance in enumerate(likely) if not chance > 0.0), count)
            if real:
                source = _Drawn(self, first + row, likely[:real], both[:real], both[count:])
                yield from self._place(row, node, source, square)

    def proposal(self, device: torch.device, source: str) -> Proposal:
        """All drawn nodes, with the distributions that they were drawn from."""
        if not self.tokens:
            return Proposal.empty(device)
        tokens = to_device(self.tokens, device)
        probs = torch.stack(self.drawn_from) if self.drawn_from else self._drawn_rows()
        if self.drawn_ids is not None:
            probs = self.widened(probs, 0.0)
        return Proposal(tokens, probs, tuple(self.parents), source=source)

    def _drawn_rows(self) -> Tensor:
        """``[nodes, n]``: each node's distribution, without its earlier siblings."""
        joint = torch.cat(self.levels)
        width, taken = joint.shape[1], [row for row, _ in self.rows_drawn]
        gone = [
            node * width + index
            for node, (_, earlier) in enumerate(self.rows_drawn)
            for index in earlier
        ]
        rows, holes = to_device([*taken, *gone], joint.device).split_with_sizes([len(taken), len(gone)])
        probs = joint.index_select(0, rows)
        if gone:
            probs.view(-1).index_fill_(0, holes, 0.0)
            probs /= probs.sum(-1, keepdim=True)
        return probs
