"""EAGLE trees for sampled requests: the children of a node are drawn without replacement."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter

import torch
from torch import Tensor

from specstream.model.heads.base import Level
from specstream.model.sampling import free_to_look, probabilities, without
from specstream.speculation.proposal import Proposal
from specstream.speculation.proposers.eagle_growth import Told, TreeGrowth

__all__ = ["DrawnTree"]

_FIRST, _LATER = (0.2, 0.75), (0.05, 0.5)
"""Acceptance of a child that was drawn with probability q, as (base, slope) of ``base + slope * q``.

The first pair is for a node's first child, the second for later ones. Measured with SmolLM2's head at
temperature .8 over 15,000 draws: first children are accepted with probability .25 for q below .02, .57
around .5 and .95 above .95; second children with .11, .36 and .82. The bases here are below those of a
fit to these figures, because with a fit trees get more nodes than pay.
"""

_MIN_REST = 1e-5  # of a row's mass: from less no further child is drawn


@dataclass(slots=True, eq=False)
class _Place:
    """A place where the tree can get a node: the next child of one parent.

    Attributes:
        row: The parent's row in the level's results.
        node: The parent.
        reached: Estimated probability that verification gets to this child.
        probs: ``[n]``, the distribution that the child is drawn from, over the draft's vocabulary or the
            target's; 0 for children that were drawn before.
        square: Sum of the squares of ``probs``, which is the mean of q over the draw.
        law: (base, slope) of the child's acceptance; see `_FIRST`.
        hope: Estimated probability that the child is accepted, averaged over all tokens that may be
            drawn; NaN from damaged weights.
    """

    row: int
    node: int
    reached: float
    probs: Tensor
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
            following = _Place(
                self.row, self.node, reached, without(self.probs, index), min(square, 1.0), _LATER
            )
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

    Attributes:
        drawn_from: For each node the distribution ``[n]`` that it was drawn from.
    """

    drawn_from: list[Tensor] = field(default_factory=list)

    @property
    def choices(self) -> int:
        """0: tokens are drawn from the logits, so a head pass needn't return the likeliest ones."""
        return 0

    def grow(self, level: Level, told: Told | None) -> None:
        """As `TreeGrowth.grow`; the draft is complete once it has ``size`` nodes."""
        TreeGrowth.grow(self, level, told)
        if len(self.tokens) >= self.size:
            self.unread = None

    def add(self, level: Level, told: Told | None) -> list[int]:
        """See `TreeGrowth.add`."""
        places, source = list(self._places(level)), list[int]()
        position = len(self.request.token_ids) + self.level
        while places and len(source) < self.top_k and len(self.tokens) < self.size:
            place = max(places, key=attrgetter("hope"))
            if self.tokens and place.hope < self.least:
                break
            index, token, q = self._draw(place.probs, position)
            chance, following = place.after(index, q)
            self.append(token, place.node, math.log(chance))
            self.drawn_from.append(place.probs)
            source.append(place.row)
            places.remove(place)
            if following is not None:
                places.append(following)
        return source

    def _draw(self, probs: Tensor, position: int) -> tuple[int, int, float]:
        """Draw an index into ``probs [n]``; return it, its token id and its probability."""
        ids = self._drawn_ids
        drawn = self.request.draw(probs.unsqueeze(0), position, ids)
        if free_to_look(probs):
            index = int(drawn)
            return index, index if ids is None else int(ids[index]), float(probs[index])
        told = drawn, drawn if ids is None else ids[drawn], probs[drawn]
        at, token, q = torch.cat([one.double() for one in told]).tolist()  # one transfer a node
        return int(at), int(token), q

    @property
    def _drawn_ids(self) -> Tensor | None:
        """``[n]`` token ids that the rows' columns stand for; None: the target's vocabulary."""
        return self.ids if self.request.params.plain_logits else None

    def _places(self, level: Level) -> Iterator[_Place]:
        """The first child's place of each node of the beam."""
        rows, params = level.logits, self.request.params
        if not params.plain_logits:
            wide = zip(self.widened(rows, -math.inf), self.beam, strict=True)
            rows = torch.stack([self.request.process(row, self.path(node)) for row, node in wide])
        elif self.ids is None:
            rows = self.widened(rows, -math.inf)
        probs = probabilities(rows, params)
        norms = torch.linalg.vector_norm(probs, dim=-1).tolist()
        for row, (node, norm) in enumerate(zip(self.beam, norms, strict=True)):
            reached = math.exp(self.scores[node]) if node >= 0 else 1.0
            place = _Place(row, node, reached, probs[row], norm * norm)
            if place.hope > 0.0:
                yield place

    def proposal(self, device: torch.device, source: str) -> Proposal:
        """All drawn nodes, with the distributions that they were drawn from."""
        if not self.tokens:
            return Proposal.empty(device)
        tokens = torch.tensor(self.tokens, device=device)
        probs = torch.stack(self.drawn_from)
        if self._drawn_ids is not None:
            probs = self.widened(probs, 0.0)
        return Proposal(tokens, probs, tuple(self.parents), source=source)
