"""When a draft stops by itself: optimal stopping, for one request or several in lockstep."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from specstream.spec.control.draft_acceptance import EDGES, DraftHabits

__all__ = ["Confidence", "Lockstep"]


class Lockstep:
    """What the requests that draft together in one round have to gain from another pass.

    Args:
        pass_worth: What a draft pass over one request costs, in tokens (its ms by the tokens per ms
            that the engine can expect).
        row_worth: What each further request adds to it.
        token_worth: What a token more adds to the target's pass: entry k is the k-th of them, beyond
            what is proposed in any case.
    """

    __slots__ = ("_token_worth", "_tokens", "hope", "pass_worth", "row_worth")

    def __init__(self, pass_worth: float, row_worth: float, token_worth: Sequence[float]) -> None:
        self.pass_worth = pass_worth
        self.row_worth = row_worth
        self.hope = 0.0
        self._token_worth = token_worth
        self._tokens = 0

    def token(self) -> float:
        """What the next token costs, the pass itself left out."""
        last = len(self._token_worth) - 1
        return self.row_worth + self._token_worth[min(self._tokens, last)]

    def add(self) -> None:
        """Another token will be drafted."""
        self._tokens += 1


class Confidence:
    """Whether to draft one more token, asked after each with the probability the draft gave it.

    The next token brings something only if all before it stand and it does too. That chance falls
    from token to token, so it is enough to look one ahead: go on while it is worth more than the
    token costs. A pass that others make anyway costs a request next to nothing, so what all of them
    hope for, by their latest answers, has to pay for it together.
    """

    __slots__ = ("_habits", "_hope", "_lockstep", "_survival")

    def __init__(self, habits: DraftHabits, lockstep: Lockstep) -> None:
        self._habits = habits
        self._lockstep = lockstep
        self._survival = 1.0 - habits.doubt.value
        self._hope = habits.first()
        lockstep.hope += self._hope

    def __call__(self, q: float) -> bool:
        """Whether to draft another token after one that the draft gave probability ``q``."""
        habits, lockstep = self._habits, self._lockstep
        bucket = bisect_right(EDGES, q)
        common = habits.common
        self._survival *= habits.calibration.chance(common.of_confidence[bucket].log_odds)
        hope = self._survival * habits.lean.chance(common.after[bucket].log_odds)
        others = lockstep.hope - self._hope
        # A request counts towards a pass only with what is left after its own token is paid for.
        own = hope - lockstep.token()
        if own > 0.0 and own + others > lockstep.pass_worth:
            lockstep.hope = others + own
            lockstep.add()
            self._hope = own
            return True
        lockstep.hope = others
        self._hope = 0.0
        return False
