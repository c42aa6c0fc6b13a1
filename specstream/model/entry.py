"""Tokens that the first layers have read before the pass that verifies them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

__all__ = ["Entered", "common_depth"]


@dataclass(frozen=True, slots=True)
class Entered:
    """The first tokens of an input, which have been through the first layers already.

    Their keys and values of these layers are in the sequence's cache, behind its valid rows, where
    `ModelRunner.enter` has written them; no pass over the sequence may have come between.

    Attributes:
        at: The cache's length then: the row of the first of them.
        depth: How many layers they have been through, at least 1.
        states: ``[m, hidden]`` after those layers, m >= 1.
    """

    at: int
    depth: int
    states: Tensor

    def fits(self, length: int, count: int) -> bool:
        """Whether they are the first of ``count`` tokens behind ``length`` valid rows."""
        return self.at == length and 0 < self.states.shape[0] <= count


def common_depth(entered: Sequence[Entered | None]) -> int:
    """The depth of those that are there; 0 if none is.

    Raises:
        ValueError: there are several.
    """
    depths = {one.depth for one in entered if one is not None}
    if len(depths) > 1:
        raise ValueError(f"the inputs of a pass have entered to one depth, not {sorted(depths)}")
    return depths.pop() if depths else 0
