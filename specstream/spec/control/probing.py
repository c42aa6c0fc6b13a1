"""How much may be risked on a draft that has not proved itself, and when it is tried again."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Account", "Schedule"]

_ALLOWANCE = 0.02  # of a plain round, earned by every round
_LIMIT = 0.8
_DEEPEST = -1.5
_FIRST, _LONGEST = 2, 16


class Account:
    """What speculation has lost against plain decoding, in plain rounds.

    Every round adds its cost in plain rounds less the tokens it brought. Gains are only kept up to a
    point, so yesterday's don't pay for today's losses; while the balance is over the limit, nothing
    is risked. So the loss over any n rounds is bounded by a constant plus 2 % of n.
    """

    __slots__ = ("lost",)

    def __init__(self) -> None:
        self.lost = 0.0

    def enter(self, cost: float, tokens: float) -> None:
        """Count one round: its cost in plain rounds, its tokens per request."""
        self.lost = max(self.lost + cost - tokens - _ALLOWANCE, _DEEPEST)

    def affords(self, cost: float = 0.0) -> bool:
        """Whether ``cost`` plain rounds may be risked now."""
        return self.lost + cost < _LIMIT or (self.lost <= 0.0 and cost < 4 * _LIMIT)


@dataclass(slots=True)
class Schedule:
    """When a request tries the draft again that it gave up: at growing intervals, up to a bound."""

    interval: int = _FIRST
    idle: int = 0

    def wait(self) -> None:
        """A round passed without the draft."""
        self.idle += 1

    def due(self, given_up: bool, elsewhere: float) -> bool:
        """Whether the draft's turn has come.

        Args:
            given_up: Whether it would not be chosen even if there were nothing better.
            elsewhere: The gain, in tokens, that this round would forgo by trying it.
        """
        if not given_up:
            return self.idle >= _LONGEST and elsewhere < 1.0
        return self.idle >= self.interval and (elsewhere < 0.5 or self.idle >= 2 * self.interval)

    def long_due(self) -> bool:
        """Whether it is time even for what seemed hopeless."""
        return self.idle >= 16 * _LONGEST

    def tried(self, success: bool) -> None:
        """The draft was tried: a failure doubles the interval, a success asks for another try soon."""
        self.idle = 0
        self.interval = 1 if success else min(max(2 * self.interval, _FIRST), _LONGEST)
