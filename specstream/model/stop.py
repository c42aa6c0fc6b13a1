"""The rule by which a chain of greedy steps ends when it is made in one call: `ModelRunner.chain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["NEVER", "Stop"]


class Stop(NamedTuple):
    """A stopping rule that depends only on the chain's tokens and their draft probabilities.

    The rule tracks *survival*, the estimated probability that all tokens so far are accepted. After step
    k (from 0), whose token has the draft probability c, survival is multiplied by the acceptance chance
    of c's bucket. The chain ends there if survival times min(that chance, ``ceiling``), the expected
    gain of the next token, is at most ``prices[k]``.

    Attributes:
        ends: Token ids after which the chain ends in any case.
        edges: Edges between the buckets, ascending; c's bucket begins at the last edge that is <= c.
        chances: Acceptance chance of each bucket; one entry more than ``edges``.
        survival: Initial value, before the first step.
        ceiling: Upper bound of the next token's acceptance chance.
        prices: Cost of the token after each step; empty: probabilities don't end the chain.
    """

    ends: Sequence[int] = ()
    edges: Sequence[float] = ()
    chances: Sequence[float] = (1.0,)
    survival: float = 1.0
    ceiling: float = 1.0
    prices: Sequence[float] = ()


NEVER = Stop()
"""The rule that never ends a chain early."""
