"""When a candidate that was not chosen is tried, and the budget for tries."""

from __future__ import annotations

from specstream.speculation.policy.acceptance import RequestAcceptance
from specstream.speculation.policy.records import Offer, Outcome

__all__ = ["Track", "Tries"]

_SHARE = 0.025  # share of the time that tries may take
_FIRST, _MOST = 1.5, 3.0  # the budget at first, and at most, in plain rounds
_LONGEST = 16  # rounds between two tries, at most
_SILENCE = 3  # planned rounds without a proposal until a draft counts as mute
_CATCHING_UP = 64  # unread tokens from which on a round without a proposal is no sign of being mute


class Tries:
    """The budget for tries, in plain rounds: grows by 2.5 % of a round each round, up to a bound."""

    __slots__ = ("_saved",)

    def __init__(self) -> None:
        self._saved = _FIRST

    def pay(self, cost: float, *, sure: bool = True) -> bool:
        """Pay for a try if the budget suffices; return whether it was paid.

        If the cost is not ``sure`` (never measured), the try is made in any case and takes what is left.
        """
        if sure and cost > self._saved:
            return False
        self._saved -= cost if sure else min(cost, self._saved)
        return True

    def enter(self) -> None:
        """Count a round."""
        self._saved = min(self._saved + _SHARE, _MOST)


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
        # A candidate whose acceptance was measured by its trainer needs no early try.
        self.interval = _LONGEST // 2 if acceptance.common.candidate.acceptance else 2

    def due(self) -> bool:
        """Return whether to try the candidate now."""
        return self.idle >= self.interval

    def observe(self, outcome: Outcome, offer: Offer, probing: bool, longest: int) -> None:
        """Learn from a round planned for the candidate.

        Args:
            outcome: The round.
            offer: The offer that it was planned from.
            probing: Whether the round was a try.
            longest: The policy's longest proposal, in tokens.
        """
        if outcome.drafted < 1:
            self._silent += offer.behind < _CATCHING_UP
            self.mute = self._silent >= _SILENCE
            return
        self._silent = self.idle = 0
        free = outcome.plan.go_on is not None and outcome.plan.num_tokens == longest
        depth = outcome.drafted if outcome.depth is None else outcome.depth
        self.acceptance.observe(offer, outcome.accepted, depth, outcome.confidences, free=free)
        failed = probing and not outcome.accepted
        self.interval = min(2 * self.interval, _LONGEST) if failed else 2
