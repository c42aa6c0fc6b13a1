"""When a draft stops by itself: optimal stopping, for one request or several in lockstep."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from specstream.speculation.policy.draft_acceptance import EDGES, DraftHabits

__all__ = ["Confidence", "Lockstep"]

_FADES = 0.75  # from one token to the next, of a chance not asked about yet


class Lockstep:
    """What the requests that draft together in one round have to gain from another pass.

    Args:
        pass_worth: What a draft pass over one request costs, in tokens (its ms by the tokens per ms
            that the engine can expect).
        row_worth: What each further request adds to it.
        token_worth: What a token more adds to the target's pass: entry k is the k-th of them, beyond
            what is proposed in any case.
    """

    __slots__ = ("_row_worth", "_token_worth", "depth", "members", "pass_worth", "tokens")

    def __init__(self, pass_worth: float, row_worth: float, token_worth: Sequence[float]) -> None:
        self.pass_worth = pass_worth
        self._row_worth = row_worth
        self._token_worth = token_worth
        self.members: list[Confidence] = []
        self.tokens = 0  # beyond what is proposed in any case
        self.depth = 0  # passes that will be made

    def price(self, ahead: int) -> float:
        """What a token costs, the pass itself left out, if so many others come before it."""
        return (
            self._row_worth
            + self._token_worth[min(self.tokens + ahead, len(self._token_worth) - 1)]
        )

    def hope(self, asking: Confidence) -> float:
        """What those who are still to be asked at this depth can be expected to gain."""
        hope, ahead = 0.0, 1
        for member in self.members:
            if member is not asking and member.depth < asking.depth and member.hope > 0.0:
                left = _FADES * member.hope - self.price(ahead)
                if left > 0.0:
                    hope += left
                    ahead += 1
        return hope


class Confidence:
    """Whether to draft one more token, asked after each with the probability the draft gave it.

    The next token brings something only if all before it stand and it does too. That chance falls
    from token to token, so it is enough to look one ahead: go on while it is worth more than the
    token costs. A pass is paid for by all who want it; once one is made, joining costs next to
    nothing.
    """

    __slots__ = ("_habits", "_lockstep", "_survival", "depth", "hope")

    def __init__(self, habits: DraftHabits, lockstep: Lockstep) -> None:
        self._habits = habits
        self._lockstep = lockstep
        self._survival = 1.0 - habits.doubt.value
        self.depth = 0  # tokens that were asked about
        self.hope = habits.first()  # chance that the next token stands; 0: stopped
        lockstep.members.append(self)

    def __call__(self, q: float) -> bool:
        """Whether to draft another token after one that the draft gave probability ``q``."""
        habits, lockstep = self._habits, self._lockstep
        self.depth += 1
        bucket = bisect_right(EDGES, q)
        common = habits.common
        self._survival *= habits.calibration.chance(common.of_confidence[bucket].log_odds)
        self.hope = self._survival * habits.lean.chance(common.after[bucket].log_odds)
        gain = self.hope - lockstep.price(0)
        if gain > 0.0 and lockstep.depth < self.depth:
            gain += lockstep.hope(self) - lockstep.pass_worth
        if gain <= 0.0:
            self.hope = 0.0
            return False
        lockstep.depth = self.depth
        lockstep.tokens += 1
        return True
