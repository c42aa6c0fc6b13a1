"""When a draft chain ends: optimal stopping, for one request or several that draft in lockstep."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from specstream.model.stop import Stop
from specstream.speculation.policy.acceptance import RequestAcceptance

__all__ = ["Chain", "Lockstep", "stop_of"]

_STAY = 0.5  # share of the other chains that are taken to join in a further draft pass


class Lockstep:
    """Requests that draft in lockstep, and the price of another token, in tokens.

    Args:
        pass_cost: Cost of a draft pass over one request.
        row_cost: Addition of each further request to the pass.
        wider: Entry k: cost of k tokens in the target pass, beyond the first of each request.
        chains: Number of requests that draft.
    """

    __slots__ = ("_row_cost", "_wider", "active", "depth", "pass_cost", "tokens")

    def __init__(
        self, pass_cost: float, row_cost: float, wider: Sequence[float], chains: int
    ) -> None:
        self.pass_cost, self._row_cost, self._wider = pass_cost, row_cost, wider
        self.depth = 1  # draft passes that are made in any case
        self.active = chains  # chains that have not stopped yet
        self.tokens = 0  # tokens drafted beyond the first of each chain

    def price(self, depth: int, ahead: int = 0) -> float:
        """Return the price of the token ``ahead`` places after a chain's next, from pass ``depth``."""
        at = self.tokens + ahead
        ms = self._row_cost + self._wider[at + 1] - self._wider[at]
        if self.depth < depth:
            ms += self.pass_cost / (1.0 + _STAY * (self.active - 1))
        return ms


class Chain:
    """The stopping rule of one request's chain, called with the draft's probability of each token.

    The probability that the next token is accepted falls from token to token, so looking one token
    ahead is optimal: go on while the next token is worth more than its price. A further draft pass is
    shared with other chains; for a pass that is made in any case, only the row is paid.

    Args:
        acceptance: The candidate's acceptance for the request.
        lockstep: The costs that the chains share.
        room: The most tokens of the chain. The rule is called after the last one, too.
    """

    __slots__ = ("_ceiling", "_chances", "_depth", "_edges", "_lockstep", "_room", "_survival")

    def __init__(self, acceptance: RequestAcceptance, lockstep: Lockstep, room: int) -> None:
        self._edges, self._chances, self._ceiling = acceptance.of_confidence()
        self._lockstep, self._room = lockstep, room
        self._survival, self._depth = min(acceptance.factor, 1.0), 1

    def __call__(self, confidence: float) -> bool:
        """Return whether to draft another token after one of that confidence."""
        lockstep, chance = self._lockstep, self._chances[bisect_right(self._edges, confidence)]
        self._depth += 1
        self._survival *= chance
        # The next token's confidence is unknown: its chance is taken to be this token's, but not more
        # than that of second tokens in general.
        hope = self._survival * min(chance, self._ceiling)
        if self._depth > self._room or hope <= lockstep.price(self._depth):
            lockstep.active -= 1
            return False
        lockstep.depth = self._depth
        lockstep.tokens += 1
        return True

    def stop(self) -> Stop | None:
        """Return the rule as data; None where the answers depend on other chains."""
        lockstep, room = self._lockstep, self._room - self._depth
        if lockstep.active != 1:
            return None
        prices = [lockstep.price(lockstep.depth + 1, ahead) for ahead in range(room)]
        return Stop((), self._edges, self._chances, self._survival, self._ceiling, prices)


def stop_of(go_on: Callable[[float], bool]) -> Stop | None:
    """Return the stopping rule as data; None if it has to be called token by token."""
    return go_on.stop() if isinstance(go_on, Chain) else None
