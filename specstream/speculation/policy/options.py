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

from specstream.speculation.policy.draft_acceptance import DraftHabits
from specstream.speculation.policy.lookup_acceptance import LookupHabits
from specstream.speculation.policy.records import Kind

__all__ = ["OFF", "Option", "Prices", "conceivable", "draft_option", "lookup_option"]


class Option(NamedTuple):
    """One way of proposing.

    Attributes:
        kind: Who proposes.
        tokens: At most how many.
        gain: Expected tokens beyond a plain round's, less what the extra time is worth.
        drafted: How many are expected to be proposed.
    """

    kind: Kind
    tokens: int
    gain: float
    drafted: float


OFF = Option("off", 0, 0.0, 0.0)


@dataclass(slots=True)
class Prices:
    """What things cost one request in this round.

    Attributes:
        worth: Tokens per ms that the engine can expect, over all requests.
        step_ms: Its share of a draft pass.
        start_ms: Its share of what drafting costs besides its passes.
        verify_ms: Entry k: what k proposed tokens add to the target's pass.
        around_ms: What any proposal adds outside the passes.
        usual: The longest proposal of a round without a limit of its own.
    """

    worth: float
    step_ms: float
    start_ms: float
    verify_ms: Sequence[float]
    around_ms: float
    usual: int

    def verify(self, count: float) -> float:
        """What ``count`` proposed tokens add, also between whole numbers."""
        whole = min(int(count), len(self.verify_ms) - 2)
        low = self.verify_ms[whole]
        return low + (count - whole) * (self.verify_ms[whole + 1] - low)


def lookup_option(
    habits: LookupHabits, match: int, support: int, cap: int, prices: Prices
) -> Option:
    """The best length for what lookup offers; OFF where none pays."""
    worth, around, verify = prices.worth, prices.around_ms, prices.verify_ms
    best, at = 0.0, 0
    accepted = 0.0
    for index, survival in enumerate(habits.survival(match, support, cap)):
        accepted += survival
        gain = accepted - worth * (verify[index + 1] + around)
        if gain > best:
            best, at = gain, index + 1
    return Option("ngram", at, best, at) if at else OFF


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
    worth, step = prices.worth, prices.step_ms
    extra_ms += prices.start_ms + prices.around_ms
    if free:
        best = float("-inf")
        for limit in (cap, 1):  # it stops early where the usual length is too long
            accepted, length = habits.free(limit, prices.usual)
            gain = accepted - worth * (length * step + prices.verify(length) + extra_ms)
            if gain > best:
                best, drafted = gain, length
            if gain > 0.0:
                break
        return Option("draft", cap, best, drafted)
    best, at = float("-inf"), 1
    accepted = 0.0
    for index, survival in enumerate(habits.fixed(cap)):
        accepted += survival
        count = index + 1
        gain = accepted - worth * (count * step + prices.verify_ms[count] + extra_ms)
        if gain > best:
            best, at = gain, count
    return Option("draft", at, best, at)


def conceivable(cap: int, prices: Prices) -> float:
    """The gain of the best length if the draft were right 19 times in 20."""
    best = accepted = 0.0
    survival = 1.0
    for count in range(1, cap + 1):
        survival *= 0.95
        accepted += survival
        ms = prices.start_ms + count * prices.step_ms + prices.verify_ms[count] + prices.around_ms
        best = max(best, accepted - prices.worth * ms)
    return best
