"""An EAGLE head's tree for a sampled request: each node's children are drawn without replacement."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specstream.model.sampling import free_to_look, probabilities, without
from specstream.speculation.proposal import Proposal
from specstream.speculation.proposers.eagle_growth import Seen, TreeGrowth

__all__ = ["DrawnTree"]

_FIRST, _LATER = (0.2, 0.75), (0.05, 0.5)
"""How often a child is accepted that was drawn with probability q, ``base + slope * q``: first, later.

SmolLM2's head at temperature .8, 15,000 draws: first children of q below .02 in .25 of all cases, around
.5 in .57, above .95 in .95; second ones in .11, .36 and .82. With bases that fit these, trees get more
nodes than pay.
"""

_NOTHING = 1e-5  # of a row's mass: no other child is drawn from the rest


class _Place:
    """A node, as far as its next child is concerned.

    Args:
        row: Of what was seen.
        node: The parent.
        reached: Probability that verification gets to the next child.
        probs: ``[n]``, what the child will be drawn from, over the draft's vocabulary or the target's: 0
            where a child was drawn.
        square: Sum of the squares of ``probs``.
        law: Of its acceptance; see `_FIRST`.
    """

    __slots__ = ("_law", "hope", "node", "probs", "reached", "row", "square")

    def __init__(
        self,
        row: int,
        node: int,
        reached: float,
        probs: Tensor,
        square: float,
        law: tuple[float, float] = _FIRST,
    ) -> None:
        self.row, self.node, self.reached = row, node, reached
        self.probs, self.square, self._law = probs, square, law
        # That the next child is accepted, over all that may be drawn; NaN comes of damaged weights.
        self.hope = reached * (law[0] + law[1] * square)

    def after(self, index: int, q: float) -> tuple[float, _Place | None]:
        """Once a child of probability q is drawn: the chance that it is accepted, and the next place."""
        accepted, left = self._law[0] + self._law[1] * q, 1.0 - q
        following = None
        if left > _NOTHING:
            square = max(self.square - q * q, 0.0) / (left * left)
            reached = self.reached * (1.0 - accepted)
            following = _Place(
                self.row, self.node, reached, without(self.probs, index), min(square, 1.0), _LATER
            )
        return self.reached * accepted, following


@dataclass(slots=True)
class DrawnTree(TreeGrowth):
    """`TreeGrowth` whose nodes are drawn, so that the verifier can hold each against its probability.

    Of as many nodes more are accepted than of the likeliest ones, for p and q overlap by more than the
    mass that p has in q's first tokens (SpecInfer, arXiv 2305.09781; Sequoia, 2402.12374).

    A level has ``top_k`` nodes at most, drawn where the next child is likeliest to be accepted, as far
    as that is likelier than ``least``. Whether another child is drawn is decided by what was drawn
    before, and whatever was drawn stays: the text would be biased by a choice among drawn tokens. All
    shapes are judged by one rule, also a tree that happens to be a chain (`checked` sees to it).
    """

    drawn_from: list[Tensor] = field(default_factory=list)  # [n] of each node

    @property
    def choices(self) -> int:
        """0: it draws instead."""
        return 0

    def take(self, seen: Seen) -> None:
        """As `TreeGrowth.take`; nothing more is read once there is no room for a node."""
        TreeGrowth.take(self, seen)
        if len(self.tokens) >= self.size:
            self.frontier = None

    def add(self, seen: Seen) -> list[int]:
        """See `TreeGrowth.add`."""
        places, source = list(self._places(seen)), list[int]()
        position = len(self.request.token_ids) + self.level
        while places and len(source) < self.top_k and len(self.tokens) < self.size:
            place = max(places, key=_hope)
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
        """An index into ``probs [n]``, the token that it stands for, and its probability."""
        ids = self._ids
        drawn = self.request.draw(probs.unsqueeze(0), position, ids)
        if free_to_look(probs):
            index = int(drawn)
            return index, index if ids is None else int(ids[index]), float(probs[index])
        told = drawn, drawn if ids is None else ids[drawn], probs[drawn]
        at, token, q = torch.cat([one.double() for one in told]).tolist()  # waits once a node
        return int(at), int(token), q

    @property
    def _ids(self) -> Tensor | None:
        """The tokens that rows are of; None: the target's vocabulary."""
        return self.head.ids if self.request.params.plain_logits else None

    def _places(self, seen: Seen) -> Iterator[_Place]:
        rows, params = seen.logits, self.request.params
        if not params.plain_logits:
            wide = zip(self.widened(rows, -math.inf), self.beam, strict=True)
            rows = torch.stack([self.request.process(row, self.path(node)) for row, node in wide])
        elif self.head.ids is None:
            rows = self.widened(rows, -math.inf)
        probs = probabilities(rows, params)
        norms = torch.linalg.vector_norm(probs, dim=-1).tolist()
        for row, (node, norm) in enumerate(zip(self.beam, norms, strict=True)):
            reached = math.exp(self.scores[node]) if node >= 0 else 1.0
            place = _Place(row, node, reached, probs[row], norm * norm)
            if place.hope > 0.0:
                yield place

    def proposal(self) -> Proposal:
        """All that was drawn."""
        if not self.tokens:
            return Proposal.empty(self.head.device)
        tokens = torch.tensor(self.tokens, device=self.head.device)
        probs = torch.stack(self.drawn_from)
        if self._ids is not None:
            probs = self.widened(probs, 0.0)
        return Proposal(tokens, probs, tuple(self.parents), source=self.head.kind)


def _hope(place: _Place) -> float:
    return place.hope
