"""What each way of proposing would bring one request in one round. Pure arithmetic.

A round with proposal P is worth ``E[accepted tokens] - worth * extra ms``, where *worth* is the
long-run rate in tokens per millisecond: by the renewal reward theorem, always taking the option with
the greatest such gain is what makes that rate as high as it can be. (Choosing the best ratio round
by round is not: it stops too early in good rounds and too late in bad ones.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specstream.spec.control.draft_acceptance import DraftHabits
from specstream.spec.control.lookup_acceptance import LookupHabits
from specstream.spec.control.records import Kind

__all__ = ["OFF", "Option", "Prices", "conceivable", "draft_option", "lookup_option"]


class Option(NamedTuple):
    """One way of proposing: at most ``tokens``, of which ``accepted`` are expected to stand."""

    kind: Kind
    tokens: int
    gain: float
    accepted: float
    drafted: float


OFF = Option("off", 0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Prices:
    """What things cost one request in this round.

    Attributes:
        worth: Tokens per ms that the engine can expect, over all requests.
        step_ms: Its share of one more draft pass.
        verify_ms: Entry k: what k proposed tokens add to the target's pass.
        around_ms: What any proposal adds outside the passes.
    """

    worth: float
    step_ms: float
    verify_ms: Sequence[float]
    around_ms: float

    def verify(self, count: float) -> float:
        """What ``count`` proposed tokens add, also between whole numbers."""
        whole = min(int(count), len(self.verify_ms) - 2)
        low = self.verify_ms[whole]
        return low + (count - whole) * (self.verify_ms[whole + 1] - low)

    def threshold(self) -> float:
        """The chance to stand that a further drafted token has to have."""
        span = len(self.verify_ms) - 1
        slope = (self.verify_ms[span] - self.verify_ms[1]) / (span - 1)
        return self.worth * (self.step_ms + slope)


def lookup_option(habits: LookupHabits, match: int, cap: int, prices: Prices) -> Option:
    """The best length for what lookup offers; OFF where none pays."""
    best = OFF
    accepted = 0.0
    for index, survival in enumerate(habits.survival(match, cap)):
        accepted += survival
        count = index + 1
        gain = accepted - prices.worth * (prices.verify_ms[count] + prices.around_ms)
        if gain > best.gain:
            best = Option("ngram", count, gain, accepted, count)
    return best


def draft_option(
    habits: DraftHabits, cap: int, prices: Prices, *, free: bool, extra_ms: float
) -> Option:
    """What the draft model would bring, whether or not it pays.

    Args:
        habits: What is known of the request.
        cap: The most tokens that may be drafted, >= 1.
        prices: This round's prices.
        free: Whether the draft can be stopped by its confidence; else a length is fixed here.
        extra_ms: Cost besides, such as this round's share of reading the prompt.
    """
    if free:
        accepted, drafted = habits.free(cap, len(prices.verify_ms) - 1)
        ms = drafted * prices.step_ms + prices.verify(drafted) + prices.around_ms + extra_ms
        return Option("draft", cap, accepted - prices.worth * ms, accepted, drafted)
    best: Option | None = None
    accepted = 0.0
    for index, survival in enumerate(habits.fixed(cap)):
        accepted += survival
        count = index + 1
        ms = count * prices.step_ms + prices.verify_ms[count] + prices.around_ms + extra_ms
        gain = accepted - prices.worth * ms
        if best is None or gain > best.gain:
            best = Option("draft", count, gain, accepted, count)
    assert best is not None
    return best


def conceivable(cap: int, prices: Prices) -> float:
    """The gain of the best length if the draft were right 19 times in 20."""
    best = accepted = 0.0
    survival = 1.0
    for count in range(1, cap + 1):
        survival *= 0.95
        accepted += survival
        ms = count * prices.step_ms + prices.verify_ms[count] + prices.around_ms
        best = max(best, accepted - prices.worth * ms)
    return best
