"""Where a chain of greedy steps ends that is written in one call: `ModelRunner.chain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["NEVER", "Stop"]


class Stop(NamedTuple):
    """A rule that needs nothing but the chain's tokens and their probabilities.

    After step k (from 0), whose token has the probability c, *survival* is multiplied by the chance of
    c's bucket. The chain ends there if survival times the smaller of that chance and ``ceiling`` is at
    most ``prices[k]``.

    Attributes:
        ends: Tokens behind which the chain ends in any case.
        edges: Of the buckets, ascending; c is in the bucket behind the last edge that is at most c.
        chances: One more than edges.
        survival: Before the first step.
        ceiling: See above.
        prices: Of each step; empty: probabilities end nothing.
    """

    ends: Sequence[int] = ()
    edges: Sequence[float] = ()
    chances: Sequence[float] = (1.0,)
    survival: float = 1.0
    ceiling: float = 1.0
    prices: Sequence[float] = ()


NEVER = Stop()
"""All steps that were asked for."""
