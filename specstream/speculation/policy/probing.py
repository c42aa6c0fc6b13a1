"""How much may be risked on a draft that has not proved itself, and when it is tried again."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Account", "Schedule"]

_KEPT = 0.96  # of the balance, from round to round
_LIMIT, _TRIES = 2.0, 0.3  # plain rounds: what may be lost, and a little more for tries
_DEEPEST = -3.0  # as much as is ever kept of what was gained
_FIRST, _EARLY, _LONGEST = 2, 4, 16  # rounds between two tries
_BOLD, _MILD = 0.7, 0.3  # what an early try may cost, in plain rounds; of one's own, or joined
_SHARE = 0.025  # of a request's time, for tries that keep failing
_UNPROVEN = 2  # tries, whatever a calibration said they cost: one reads, the next one tells
_SPARED = 0.01  # of all time, for tries that would be too dear for one request


class Account:
    """What drafting has lost against plain decoding of late, in plain rounds.

    A round with a draft adds its cost in plain rounds less the tokens it brought; every round a small
    part of the balance is forgotten. While the balance is over the limit, drafting is left to the
    occasional try. So whatever the estimates say, a loss that goes on is at most about
    ``(1 - _KEPT) * _LIMIT`` of the time, and one that begins a few plain rounds.
    """

    __slots__ = ("idle", "lost", "unproven")

    def __init__(self) -> None:
        self.lost = 0.0
        self.idle = 0  # steps since the last try
        self.unproven = _UNPROVEN

    def enter(self, loss: float) -> None:
        """Count one round that lost so many plain rounds (below 0: gained)."""
        self.lost = max(self.lost * _KEPT + loss, _DEEPEST)
        self.idle += 1

    def affords(self) -> bool:
        """Whether anything may be risked now."""
        return self.lost < _LIMIT

    def spares(self, cost: float) -> bool:
        """Whether a try at that price keeps all tries together to their share of the time."""
        return cost <= _SPARED * self.idle

    def affords_try(self, cost: float) -> bool:
        """Whether so many plain rounds may be spent on a try."""
        return self.lost + cost < _LIMIT + _TRIES or (self.lost <= 0.05 and cost < 4 * _LIMIT)


@dataclass(slots=True)
class Schedule:
    """When a request tries the draft again that it gave up: at growing intervals, up to a bound."""

    interval: int = _FIRST
    idle: int = 0
    cost: float = 0.0  # of a try, as it was last asked about

    @staticmethod
    def beginning(doubt: float) -> Schedule:
        """Of a new request: the less likely it is that the draft works, the later the first try."""
        return Schedule(_FIRST + round(doubt * (_LONGEST - _FIRST)))

    def wait(self, able: bool) -> None:
        """A round begins; it counts if anything could be proposed in it."""
        self.idle += able

    def turn(self) -> int:
        """Rounds until the turn of a draft that was given up may come; below 1: it is past."""
        if self.interval <= _EARLY and self.cost <= _BOLD:
            return self.interval - self.idle
        return max(self.interval, math.ceil(self.cost / _SHARE)) - self.idle

    def ripe(self, given_up: bool) -> bool:
        """Whether its turn may have come at all: quickly told, and mostly no."""
        return self.idle >= (self.interval / 2 if given_up else _LONGEST)

    def due(
        self,
        given_up: bool,
        elsewhere: float,
        cost: float,
        *,
        joining: bool = False,
        spared: bool = False,
    ) -> bool:
        """Whether the draft's turn has come.

        Args:
            given_up: Whether it would not be chosen even if there were nothing better.
            elsewhere: The gain, in tokens, that this round would forgo by trying it.
            cost: What a try costs, in plain rounds of one request.
            joining: Whether another request tries in this round anyway.
            spared: Whether the price doesn't matter, because tries have been few of late.
        """
        self.cost = cost
        if not given_up:
            return self.idle >= _LONGEST and elsewhere < 1.0
        wait = self.interval / 2 if joining else self.interval
        if self.idle < (2 * wait if elsewhere > 0.5 else wait):
            return False
        if spared or cost <= _SHARE * self.idle:
            return True
        return self.interval <= _EARLY and cost <= (_MILD if joining else _BOLD)

    def long_due(self) -> bool:
        """Whether it is time even for what seemed hopeless."""
        return self.idle >= 16 * _LONGEST

    def used(self) -> None:
        """The draft was the choice, and proposed."""
        self.idle = 0
        self.interval = 1

    def tried(self, news: bool) -> None:
        """The draft was tried: good news ask for another try soon, anything else for a later one."""
        self.idle = 0
        self.interval = 1 if news else min(max(2 * self.interval, _FIRST), _LONGEST)
