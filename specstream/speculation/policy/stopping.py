"""When a draft chain ends: optimal stopping, for one request or several that draft in lockstep."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from specstream.model.stop import Stop
from specstream.speculation.policy.acceptance import RequestAcceptance

__all__ = ["Chain", "Lockstep", "stop_of"]


class Lockstep:
    """Requests that draft together, and what another token costs them, in tokens.

    Args:
        pass_cost: A draft pass over one request.
        row_cost: What each further request adds to the pass.
        wider: What tokens add to the target pass, beyond the first of each request: entry k, what k do.
        chains: How many draft.
    """

    __slots__ = ("_row_cost", "_wider", "active", "depth", "pass_cost", "tokens")

    def __init__(
        self, pass_cost: float, row_cost: float, wider: Sequence[float], chains: int
    ) -> None:
        self.pass_cost, self._row_cost, self._wider = pass_cost, row_cost, wider
        self.active = chains  # chains that go on, as far as is known
        self.depth = 1  # passes that will be made
        self.tokens = 0  # beyond the first of each chain

    def price(self, depth: int, ahead: int = 0) -> float:
        """The cost of a chain's next token but ``ahead``, if its draft pass is number ``depth``."""
        at = self.tokens + ahead
        ms = self._row_cost + self._wider[at + 1] - self._wider[at]
        return ms if self.depth >= depth else ms + self.pass_cost / self.active


class Chain:
    """One request's chain, asked after each token with the probability that the draft gave to it.

    The chance that the next token is accepted falls from token to token, so looking one token ahead
    suffices: go on while the token is worth more than it costs. A draft pass is shared by all chains
    that still go on; once it will be made, joining costs only the row.

    Args:
        acceptance: How likely the request's tokens are accepted.
        lockstep: What the chains share.
        room: Tokens that the chain may have. It is asked after the last one, too.
    """

    __slots__ = ("_ceiling", "_chances", "_depth", "_edges", "_lockstep", "_room", "_survival")

    def __init__(self, acceptance: RequestAcceptance, lockstep: Lockstep, room: int) -> None:
        self._edges, self._chances, self._ceiling = acceptance.of_confidence()
        self._lockstep, self._room = lockstep, room
        self._survival, self._depth = 1.0 - acceptance.doubt, 1

    def __call__(self, confidence: float) -> bool:
        """Whether to draft another token after one of that confidence."""
        lockstep, chance = self._lockstep, self._chances[bisect_right(self._edges, confidence)]
        self._depth += 1
        self._survival *= chance
        # Of the next token nothing is known yet: it is taken to be no likelier than this one, nor than
        # second tokens are.
        hope = self._survival * min(chance, self._ceiling)
        if self._depth > self._room or hope <= lockstep.price(self._depth):
            lockstep.active -= 1
            return False
        lockstep.depth = self._depth
        lockstep.tokens += 1
        return True

    def stop(self) -> Stop | None:
        """What it will answer, as a rule; None where that depends on other chains."""
        lockstep, room = self._lockstep, self._room - self._depth
        if lockstep.active != 1:
            return None
        prices = [lockstep.price(lockstep.depth + 1, ahead) for ahead in range(room)]
        return Stop((), self._edges, self._chances, self._survival, self._ceiling, prices)


def stop_of(go_on: Callable[[float], bool]) -> Stop | None:
    """What it will answer, as a rule; None: that has to be asked token by token."""
    return go_on.stop() if isinstance(go_on, Chain) else None
