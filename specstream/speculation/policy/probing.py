"""When a candidate that was not chosen is tried, and the budget for tries."""

from __future__ import annotations

from specstream.speculation.policy.acceptance import RequestAcceptance
from specstream.speculation.policy.records import Offer, Outcome

__all__ = ["Track", "Tries"]

_SHARE = 0.025  # share of the time that tries may take
_FIRST, _MOST = 1.5, 3.0  # the budget at first, and at most, in plain rounds
_DEAREST = 8.0  # a try that costs more plain rounds than this is never made
_LONGEST = 16  # rounds between two tries, at most
_SILENCE = 3  # planned rounds without a proposal until a draft counts as mute
_CATCHING_UP = 64  # unread tokens from which on a round without a proposal is no sign of being mute
_KNOWN = 0.5  # least doubt used for the first try's date if a trainer measured the acceptance


class Tries:
    """The budget for tries, in plain rounds: grows by 2.5 % of a round each round, up to a bound."""

    __slots__ = ("_paid", "_saved")

    def __init__(self) -> None:
        self._saved, self._paid = _FIRST, 0.0

    def pay(self, cost: float, *, sure: bool = True) -> bool:
        """Pay for a try if the budget suffices; return whether it was paid.

        If the cost is not ``sure`` (never measured), the try is made in any case and takes what is left.
        """
        if sure and (min(cost, _MOST) > self._saved or cost > _DEAREST):
            return False
        cost = cost if sure else min(cost, self._saved)
        self._saved -= cost
        self._paid += cost
        return True

    def enter(self, *, news: bool) -> None:
        """Count a round; after a try that went better than expected (``news``), refund its cost."""
        self._saved = min(self._saved + _SHARE + news * self._paid, _MOST)
        self._paid = 0.0


class Track:
    """The record of one candidate with one request: its acceptance, and when to try it again.

    Args:
        acceptance: The estimate of its acceptance for this request.

    Attributes:
        idle: Rounds since it proposed.
        interval: Rounds from a failed try to the next one; doubles with each failure.
        mute: Whether it no longer answers (its context is full, or its weights are damaged).
    """

    __slots__ = ("_silent", "acceptance", "idle", "interval", "mute")

    def __init__(self, acceptance: RequestAcceptance) -> None:
        self.acceptance, self.mute = acceptance, False
        self.idle = self._silent = 0
        # The more doubtful the candidate, the later its first try. A candidate whose acceptance was
        # measured by its trainer needs no early try either.
        told = acceptance.common.candidate.acceptance
        doubt = max(acceptance.doubt, _KNOWN if told else 0.0)
        self.interval = 1 + round(doubt * (_LONGEST - 1))

    def due(self, joining: bool = False) -> bool:
        """Return whether to try the candidate now.

        Twice as soon if ``joining``, that is, if it drafts for another request in this round anyway.
        """
        return self.idle * (1 + joining) >= self.interval

    def observe(self, outcome: Outcome, offer: Offer, probing: bool, longest: int) -> bool:
        """Learn from a round planned for the candidate; return whether a try went better than expected.

        Args:
            outcome: The round.
            offer: The offer that it was planned from.
            probing: Whether the round was a try.
            longest: The policy's longest proposal, in tokens.
        """
        if outcome.drafted < 1:
            self._silent += offer.behind < _CATCHING_UP
            self.mute = self._silent >= _SILENCE
            return False
        self._silent = self.idle = 0
        believed = self.acceptance.first(offer) if probing else 1.0
        free = outcome.plan.go_on is not None and outcome.plan.num_tokens == longest
        depth = outcome.drafted if outcome.depth is None else outcome.depth
        self.acceptance.observe(offer, outcome.accepted, depth, outcome.confidences, free=free)
        news = probing and outcome.accepted > 0 and believed < 0.5
        if not probing:
            self.interval = 2
        else:
            self.interval = 1 if news else min(2 * self.interval, _LONGEST)
        return news
