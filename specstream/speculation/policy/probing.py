"""When a candidate that does not pay is tried again, and what tries may cost."""

from __future__ import annotations

from specstream.speculation.policy.acceptance import RequestAcceptance
from specstream.speculation.policy.records import Offer, Outcome

__all__ = ["Track", "Tries"]

_SHARE = 0.025  # of the time, for tries
_FIRST, _MOST = 1.5, 3.0  # plain rounds: what tries may cost at first, and at most at once
_DEAREST = 8.0  # plain rounds: a try that costs more is never made
_LONGEST = 16  # rounds between two tries
_SILENCE = 3  # rounds without a proposal until a draft is mute
_CATCHING_UP = 64  # unread tokens that excuse a round without a proposal
_KNOWN = 0.5  # stands for the doubt in a candidate whose trainer measured its acceptance


class Tries:
    """Bounds what tries cost, in plain rounds: an account that grows by a fixed share of the time."""

    __slots__ = ("_paid", "_saved")

    def __init__(self) -> None:
        self._saved, self._paid = _FIRST, 0.0

    def pay(self, cost: float, *, sure: bool = True) -> bool:
        """Pay for a try, if there is enough for it, or if it is not ``sure`` that it costs so much."""
        if sure and (min(cost, _MOST) > self._saved or cost > _DEAREST):
            return False
        cost = cost if sure else min(cost, self._saved)
        self._saved -= cost
        self._paid += cost
        return True

    def enter(self, *, news: bool) -> None:
        """Count a round; ``news``: whether a try went better than expected: its cost is paid back."""
        self._saved = min(self._saved + _SHARE + news * self._paid, _MOST)
        self._paid = 0.0


class Track:
    """One candidate's record with one request: its acceptance, and when it is tried again.

    Args:
        acceptance: How likely its tokens are accepted.

    Attributes:
        idle: Rounds since it proposed.
        interval: Rounds from a failed try to the next one; doubles with each.
        mute: Whether it no longer proposes (its context is full, its weights are damaged).
    """

    __slots__ = ("_silent", "acceptance", "idle", "interval", "mute")

    def __init__(self, acceptance: RequestAcceptance) -> None:
        self.acceptance, self.mute = acceptance, False
        self.idle = self._silent = 0
        # The less likely it is that the candidate works at all, the later the first try; what was told
        # of it needn't be found out at once.
        told = acceptance.common.candidate.acceptance
        doubt = max(acceptance.doubt, _KNOWN if told else 0.0)
        self.interval = 1 + round(doubt * (_LONGEST - 1))

    def due(self, joining: bool = False) -> bool:
        """Whether to try the candidate again; ``joining``: where others do anyway."""
        return self.idle * (1 + joining) >= self.interval

    def observe(self, outcome: Outcome, offer: Offer, probing: bool, longest: int) -> bool:
        """Learn from a round that was planned for the candidate; whether it was a try that went well.

        Args:
            outcome: The round.
            offer: What it was planned from.
            probing: Whether it was a try.
            longest: The longest proposal of a round without limits of its own.
        """
        if outcome.drafted < 1:
            self._silent += offer.behind < _CATCHING_UP
            self.mute = self._silent >= _SILENCE
            return False
        self._silent = self.idle = 0
        (believed,) = self.acceptance.survival(offer, 1) if probing else (1.0,)
        free = outcome.plan.go_on is not None and outcome.plan.num_tokens == longest
        depth = outcome.drafted if outcome.depth is None else outcome.depth
        self.acceptance.observe(offer, outcome.accepted, depth, outcome.confidences, free=free)
        news = probing and outcome.accepted > 0 and believed < 0.5
        if not probing:
            self.interval = 2
        else:
            self.interval = 1 if news else min(2 * self.interval, _LONGEST)
        return news
