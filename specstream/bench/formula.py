"""What speculation can bring: the speedup formula, and the number of drafts that makes the most of it.

With K drafted tokens a round, a draft step that costs ``c`` plain rounds a token, a pass over M tokens
that costs ``v(M)`` of them and ``o`` of overhead beside (Leviathan et al. 2023, with v and o added):

    S(K) = E[tau] / (c K + v(K + 1) + o)

where E[tau] is the mean number of tokens that a round commits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Optimum", "acceptance_from", "expected_tokens", "optimum", "speedup"]

MOST_DRAFTS = 32


def expected_tokens(acceptance: Callable[[int], float], drafts: int) -> float:
    """E[tau] = 1 + sum over i of the chance that the first i drafts all stand.

    Args:
        acceptance: The chance that draft i (from 0) stands, given that those before it do.
        drafts: K, drafted tokens a round.
    """
    total = reach = 1.0
    for position in range(drafts):
        reach *= acceptance(position)
        total += reach
    return total


def acceptance_from(measured: Sequence[float], pooled: float) -> Callable[[int], float]:
    """Acceptance by position from measured rates; ``pooled`` where nothing was measured.

    For independent drafts of one rate (as in the published formula) give no measured ones.
    """
    return lambda position: measured[position] if position < len(measured) else pooled


def speedup(
    acceptance: Callable[[int], float],
    drafts: int,
    c: float,
    v: Callable[[int], float],
    o: float = 0.0,
) -> float:
    """S(K). All costs are in units of one plain round."""
    return expected_tokens(acceptance, drafts) / (c * drafts + v(drafts + 1) + o)


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best number of drafts a round, the tokens it commits, and the speedup it gives."""

    drafts: int
    tokens: float
    speedup: float


def optimum(
    acceptance: Callable[[int], float],
    c: float,
    v: Callable[[int], float],
    o: float = 0.0,
    *,
    most: int = MOST_DRAFTS,
) -> Optimum:
    """The best K from 0 to ``most``; 0 drafts is plain decoding, a speedup of 1 by definition."""
    best = Optimum(0, 1.0, 1.0)
    for drafts in range(1, most + 1):
        found = speedup(acceptance, drafts, c, v, o)
        if found > best.speedup:
            best = Optimum(drafts, expected_tokens(acceptance, drafts), found)
    return best
