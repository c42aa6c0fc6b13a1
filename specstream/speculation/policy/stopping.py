"""When a draft chain ends: optimal stopping, for one request or several that draft in lockstep."""

from __future__ import annotations

from collections.abc import Sequence

from specstream.speculation.policy.acceptance import RequestAcceptance

__all__ = ["Chain", "Lockstep"]

_FADES = 0.75  # from one token to the next, of the chance of a chain that was not asked yet


class Lockstep:
    """Requests that draft together, and what another token costs them.

    The unit of costs is a token: ms times expected tokens per ms.

    Args:
        pass_cost: A draft pass over one request.
        row_cost: What each further request adds to the pass.
        token_costs: What tokens add to the target pass, beyond those proposed in any case: the first,
            second, ….
    """

    __slots__ = ("_row_cost", "_token_costs", "chains", "depth", "pass_cost", "tokens")

    def __init__(self, pass_cost: float, row_cost: float, token_costs: Sequence[float]) -> None:
        self.pass_cost = pass_cost
        self._row_cost = row_cost
        self._token_costs = token_costs
        self.chains: list[Chain] = []
        self.tokens = 0  # beyond those proposed in any case
        self.depth = 0  # passes that will be made

    def price(self, ahead: int) -> float:
        """The cost of a token without its draft pass, if ``ahead`` other tokens come before it."""
        last = len(self._token_costs) - 1
        return self._row_cost + self._token_costs[min(self.tokens + ahead, last)]

    def hope(self, asking: Chain) -> float:
        """Expected gain of the chains that are still to be asked at this depth."""
        hope, ahead = 0.0, 1
        for chain in self.chains:
            if chain is not asking and chain.depth < asking.depth and chain.hope > 0.0:
                gain = _FADES * chain.hope - self.price(ahead)
                if gain > 0.0:
                    hope += gain
                    ahead += 1
        return hope


class Chain:
    """One request's chain, asked after each token with the probability that the draft gave to it.

    The chance that the next token is accepted falls from token to token, so looking one token ahead
    suffices: go on while the token is worth more than it costs. A draft pass is paid by all chains that
    go on with it; once it will be made, joining costs only the row.
    """

    __slots__ = ("_acceptance", "_lockstep", "_survival", "depth", "hope")

    def __init__(self, acceptance: RequestAcceptance, lockstep: Lockstep, first: float) -> None:
        self._acceptance = acceptance
        self._lockstep = lockstep
        self._survival = acceptance.start()
        self.depth = 0  # tokens that were asked about
        self.hope = first  # chance that the next token is accepted; 0: stopped
        lockstep.chains.append(self)

    def __call__(self, confidence: float) -> bool:
        """Whether to draft another token after one of that confidence."""
        self._survival, hope = self._acceptance.after(self._survival, confidence)
        return self.extend(hope)

    def extend(self, hope: float) -> bool:
        """Whether to draft another token that is accepted with probability ``hope``."""
        lockstep = self._lockstep
        self.depth += 1
        self.hope = hope
        gain = hope - lockstep.price(0)
        if gain > 0.0 and lockstep.depth < self.depth:
            gain += lockstep.hope(self) - lockstep.pass_cost
        if gain <= 0.0:
            self.hope = 0.0
            return False
        lockstep.depth = self.depth
        lockstep.tokens += 1
        return True
