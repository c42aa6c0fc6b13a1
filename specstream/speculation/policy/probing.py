"""How much a candidate that does not pay may lose, and when it is tried again."""

from __future__ import annotations

from specstream.speculation.policy.acceptance import RequestAcceptance
from specstream.speculation.policy.records import Offer, Outcome

__all__ = ["LossLimit", "Track"]

_DECAY = 0.96  # of the balance, each round
_LIMIT, _TRIES = 2.0, 0.3  # plain rounds: what may be lost of late; what tries may add
_MOST_KEPT = 3.0  # plain rounds of gain that count against later losses
_FIRST, _EARLY, _LONGEST = 2, 4, 16  # rounds between two tries
_BOLD, _SHARE = 0.7, 0.025  # cost of an early try, in plain rounds; tries' share of the time
_ALL_SHARE = 0.01  # the same for tries of all requests together
_SILENCE = 3  # rounds without a proposal until a draft is mute
_CATCHING_UP = 64  # unread tokens that excuse a round without a proposal


class LossLimit:
    """Bounds what drafting loses against plain decoding, whatever the estimates say.

    A round with a draft adds its cost in plain rounds less its tokens; the balance decays every round.
    While it is over the limit, only tries draft: a lasting loss is at most about ``(1 - _DECAY) *
    _LIMIT`` of the time.
    """

    __slots__ = ("_lost", "idle")

    def __init__(self) -> None:
        self._lost = 0.0
        self.idle = 0  # steps since the last try

    def enter(self, loss: float) -> None:
        """Count a round that lost so many plain rounds (below 0: gained)."""
        self._lost = max(self._lost * _DECAY + loss, -_MOST_KEPT)
        self.idle += 1

    def allows(self) -> bool:
        """Whether drafting may be chosen."""
        return self._lost < _LIMIT

    def allows_try(self, cost: float) -> bool:
        """Whether a try may cost so many plain rounds."""
        return self._lost + cost < _LIMIT + _TRIES or (self._lost <= 0.05 and cost < 4.0 * _LIMIT)


class Track:
    """One candidate's record with one request: its acceptance, and when it is tried again.

    Attributes:
        gain: What it was last expected to gain, in tokens per round; minus infinity if it may not be
            used.
        idle: Rounds since it proposed.
        interval: Rounds from a failed try to the next one; doubles with each.
        mute: Whether it no longer proposes (its context is full, its weights are damaged).
    """

    __slots__ = ("_silent", "acceptance", "gain", "idle", "interval", "mute")

    def __init__(self, acceptance: RequestAcceptance) -> None:
        self.acceptance = acceptance
        self.gain = 0.0
        self.idle = 0
        # The less likely it is that the candidate works at all, the later the first try.
        self.interval = _FIRST + round(acceptance.doubt.value * (_LONGEST - _FIRST))
        self.mute = False
        self._silent = 0

    def ripe(self) -> bool:
        """Whether a try may be due: a cheap test before `due`."""
        return self.idle >= (_LONGEST if self.gain > 0.0 else self.interval / 2)

    def due(self, elsewhere: float, cost: float, rows: int, all_idle: int, joining: bool) -> bool:
        """Whether to try the candidate now.

        Args:
            elsewhere: The gain, in tokens, that the request would forgo.
            cost: What the try costs, in plain rounds.
            rows: Requests that wait for it.
            all_idle: Rounds since any request's last try.
            joining: Whether another request tries in this round anyway.
        """
        if self.gain > 0.0:  # it pays, though another candidate pays more
            return self.idle >= _LONGEST and elsewhere < 1.0
        wait = self.interval * (0.5 if joining else 1.0) * (2.0 if elsewhere > 0.5 else 1.0)
        if self.idle < wait:
            return False
        early = self.interval <= _EARLY and rows * cost <= _BOLD
        return early or rows * cost <= _SHARE * self.idle or cost <= _ALL_SHARE * all_idle

    def observe(self, outcome: Outcome, offer: Offer, probing: bool, longest: int) -> None:
        """Learn from a round that was planned for the candidate.

        Args:
            outcome: The round.
            offer: What it was planned from.
            probing: Whether it was a try.
            longest: The longest proposal of a round without limits of its own.
        """
        if outcome.drafted < 1:
            self._silent += offer.behind < _CATCHING_UP
            self.mute = self._silent >= _SILENCE
            return
        self._silent = self.idle = 0
        acceptance = self.acceptance
        depth = outcome.drafted if outcome.depth is None else outcome.depth
        (believed,) = acceptance.survival(offer, 1)
        acceptance.observe(offer, outcome.accepted, depth, outcome.confidences)
        if not probing:
            self.interval = 1
            if outcome.plan.go_on is not None and outcome.plan.num_tokens == longest:
                acceptance.observe_length(outcome.accepted, depth)
        elif outcome.accepted and believed < 0.5:  # good news: try again soon
            self.interval = 1
        else:
            self.interval = min(max(2 * self.interval, _FIRST), _LONGEST)
