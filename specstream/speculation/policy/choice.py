"""Plans one step: which candidate proposes for each request, and how many tokens.

A proposal is worth ``E[accepted tokens] - worth * extra ms``, where *worth* is the expected long-run
rate in tokens per millisecond. By the renewal reward theorem, choosing the largest gain each round
maximises that rate. (Choosing the best ratio of each round does not: it stops too early in good rounds
and too late in bad ones.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from specstream.speculation.policy.costs import Costs
from specstream.speculation.policy.probing import LossLimit, Track
from specstream.speculation.policy.records import Candidate, Offer, Outlook, Plan
from specstream.speculation.policy.stopping import Chain, Lockstep

__all__ = ["OFF", "Option", "Place", "Prices", "Step", "best_length"]

# Factor on draft costs in a batch: its chains are of uneven length, and a draft that breaks even only
# delays the other requests.
_MARGIN = 1.5
_CHEAP = 0.5  # plain rounds: a try of two tokens that costs more is one of one token


class Option(NamedTuple):
    """A proposal for one request. ``gain``: expected, in tokens; ``drafted``: expected length."""

    candidate: str
    tokens: int
    gain: float
    drafted: float


OFF = Option("off", 0, 0.0, 0.0)


@dataclass(slots=True)
class Place:
    """A request in a step. ``most``: the longest useful proposal; ``tracks``: by candidate."""

    outlook: Outlook
    most: int
    tracks: dict[str, Track]
    rounds_left: float
    option: Option = OFF  # the latest choice
    probing: bool = False

    def room(self, name: str) -> int:
        """The longest proposal of a candidate."""
        offer = self.outlook.offers.get(name)
        if offer is None or self.tracks[name].mute:
            return 0
        return min(self.most, offer.tokens)


@dataclass(slots=True)
class Prices:
    """What a candidate's proposal costs one request.

    Attributes:
        worth: Expected tokens per ms, over all requests.
        step_ms: The request's share of a draft pass.
        fixed_ms: What a proposal costs whatever its length.
        verify_ms: Entry k: what k proposed tokens add to the target pass.
    """

    worth: float
    step_ms: float
    fixed_ms: float
    verify_ms: Sequence[float]

    def cost(self, candidate: Candidate, offer: Offer, count: int) -> float:
        """A proposal of ``count`` tokens (levels), in tokens."""
        nodes = offer.nodes[count - 1] if offer.nodes else count
        steps = _passes(candidate, count)
        return self.worth * (steps * self.step_ms + self.fixed_ms + self.verify_ms[nodes])

    def stopped_cost(self, length: float) -> float:
        """A chain of ``length`` tokens on average, in tokens."""
        whole = min(int(length), len(self.verify_ms) - 2)
        low, high = self.verify_ms[whole : whole + 2]
        verify = low + (length - whole) * (high - low)
        return self.worth * (length * self.step_ms + self.fixed_ms + verify)


def _passes(candidate: Candidate, count: int) -> int:
    return {"none": 0, "one": 1, "each": count}[candidate.passes]


def best_length(
    survival: Sequence[float], candidate: Candidate, offer: Offer, prices: Prices
) -> Option:
    """The length with the largest gain; ``survival``: as `RequestAcceptance.survival`."""
    best, length, accepted = float("-inf"), 1, 0.0
    for index, reached in enumerate(survival):
        accepted += reached
        gain = accepted - prices.cost(candidate, offer, index + 1)
        if gain > best:
            best, length = gain, index + 1
    nodes = offer.nodes[length - 1] if offer.nodes else length
    return Option(candidate.name, length, best, nodes)


class Step:
    """One step.

    Its requests share the target pass; those that draft with one candidate share its passes.

    Args:
        places: The requests.
        candidates: All candidates.
        costs: The cost model.
        worth: Expected tokens per ms, over all requests.
        max_tokens: The longest proposal.
    """

    def __init__(
        self,
        places: Sequence[Place],
        candidates: Sequence[Candidate],
        costs: Costs,
        worth: float,
        max_tokens: int,
    ) -> None:
        self._places = places
        self._candidates = candidates
        self._costs = costs
        self._worth = worth
        self._max_tokens = max_tokens
        self._rows = len(places)
        self._around_ms = max(costs.other(True) - costs.other(False), 0.0)
        trees = [o.nodes[-1] for p in places for o in p.outlook.offers.values() if o.nodes]
        self._widest = max(max_tokens, 2, *trees)

    def choose(self, drafting_allowed: bool) -> None:
        """Set each place's option; without ``drafting_allowed``, from lookups only."""
        names = [c.name for c in self._candidates if c.passes != "none"]
        able = {n: sum(p.room(n) > 0 for p in self._places) * drafting_allowed for n in names}
        self._choose(able)
        drafting = {n: sum(p.option.candidate == n for p in self._places) for n in names}
        if any(0 < drafting[n] < able[n] for n in names):
            self._choose(drafting)  # a draft pass is shared by fewer than was assumed

    def _choose(self, sharers: dict[str, int]) -> None:
        depths = range(1, self._widest + 1)
        others = [sum(min(d, p.option.drafted) for p in self._places) for d in depths]
        for place in self._places:
            own = place.option.drafted
            verify_ms = self._widening(
                [n - min(d, own) for d, n in zip(depths, others, strict=True)]
            )
            self._choose_for(place, sharers, verify_ms)
            if place.option.drafted != own:
                new = place.option.drafted
                others = [
                    n - min(d, own) + min(d, new) for d, n in zip(depths, others, strict=True)
                ]

    def _widening(self, others: Sequence[float]) -> list[float]:
        """Entry k: what k tokens of one request add to the target pass, ms.

        A first token is worth more than another request's second token, so the k-th token is priced as
        if the first k tokens of each other request were in the pass already (``others[k - 1]`` in all).
        """
        if self._rows == 1:
            return self._costs.widening(1, self._widest)
        table = self._costs.widening(self._rows, self._rows * self._widest)
        ms, total = [0.0], 0.0
        for depth, before in enumerate(others):
            at = min(int(before) + depth, len(table) - 2)
            total += table[at + 1] - table[at]
            ms.append(total)
        return ms

    def _choose_for(
        self, place: Place, sharers: dict[str, int], verify_ms: Sequence[float]
    ) -> None:
        place.option = OFF
        for candidate in self._candidates:
            name, track = candidate.name, place.tracks[candidate.name]
            count, track.gain = place.room(name), float("-inf")
            shared_by = 1 if candidate.passes == "none" else sharers[name]
            if count < 1 or not shared_by:
                continue
            prices = self._prices(place, candidate, shared_by, verify_ms)
            option = self._option(place, candidate, count, prices)
            track.gain = option.gain
            if option.gain > place.option.gain:
                place.option = option

    def _prices(
        self, place: Place, candidate: Candidate, sharers: int, verify_ms: Sequence[float]
    ) -> Prices:
        step_ms, fixed_ms = 0.0, self._around_ms
        if candidate.passes != "none":
            costs, margin = self._costs.draft(candidate.name), _MARGIN if self._rows > 1 else 1.0
            step_ms = margin * costs.step_of(sharers) / sharers
            behind = place.outlook.offers[candidate.name].behind
            fixed_ms += margin * costs.start / sharers
            fixed_ms += behind * costs.read.value / place.rounds_left
        return Prices(self._worth, step_ms, fixed_ms, verify_ms)

    def _option(self, place: Place, candidate: Candidate, count: int, prices: Prices) -> Option:
        """The candidate's best proposal, whether or not it pays."""
        offer = place.outlook.offers[candidate.name]
        acceptance = place.tracks[candidate.name].acceptance
        if not candidate.stops:
            return best_length(acceptance.survival(offer, count), candidate, offer, prices)
        accepted, length = acceptance.stopped(offer, count)
        gain = accepted - prices.stopped_cost(length)
        if gain <= 0.0 and count > 1:  # a chain of one may pay where the usual length does not
            one = best_length(acceptance.survival(offer, 1), candidate, offer, prices)
            if one.gain > gain:
                return one._replace(tokens=count)
        return Option(candidate.name, count, gain, length)

    def plans(self) -> list[Plan]:
        """The options as plans."""
        go_on: dict[int, Chain] = {}
        for candidate in self._candidates:
            name = candidate.name
            group = [p for p in self._places if p.option.candidate == name]
            if candidate.passes != "each" or not group or group[0].outlook.offers[name].nodes:
                continue
            if candidate.stops:
                lockstep = self._lockstep(name, group)
                for place in group:
                    acceptance = place.tracks[name].acceptance
                    (first,) = acceptance.survival(place.outlook.offers[name], 1)
                    chain = Chain(acceptance, lockstep, first)
                    if place.option.tokens > 1:
                        go_on[place.outlook.id] = chain
            elif len(group) > 1:
                self._align(name, group)
        return [
            Plan(p.option.candidate, p.option.tokens, go_on.get(p.outlook.id)) for p in self._places
        ]

    def _lockstep(self, name: str, group: Sequence[Place]) -> Lockstep:
        costs, worth = self._costs.draft(name), self._worth
        width = self._rows + len(group)  # one token of each draft is proposed in any case
        width += sum(int(p.option.drafted) for p in self._places if p.option.candidate != name)
        ms = self._costs.widening(width, min(len(group) * self._max_tokens, 128))
        token_costs = [worth * (b - a) for a, b in pairwise(ms)]
        return Lockstep(worth * costs.step, worth * costs.row, token_costs)

    def _align(self, name: str, group: Sequence[Place]) -> None:
        """Fix the lengths of chains that can't be stopped, as if each were asked after each token."""
        lockstep = self._lockstep(name, group)
        going = []
        for place in group:
            acceptance = place.tracks[name].acceptance
            survival = acceptance.survival(place.outlook.offers[name], place.room(name))
            place.option = place.option._replace(tokens=1, drafted=1)
            going.append((place, survival, Chain(acceptance, lockstep, survival[0])))
        for depth in range(1, self._max_tokens):
            going = [g for g in going if depth < len(g[1])]
            going.sort(key=lambda g: -g[1][depth])
            going = [g for g in going if g[2].extend(g[1][depth])]
            for place, _, _ in going:
                place.option = place.option._replace(tokens=depth + 1, drafted=depth + 1)

    def probe(self, plans: list[Plan], losses: LossLimit, plain_ms: float) -> None:
        """Give candidates that were not chosen a short try now and then, all requests together."""
        for candidate in self._candidates:
            if candidate.passes != "none":
                name = candidate.name
                idle = [p for p in self._places if p.option.candidate != name and p.room(name)]
                if any(place.tracks[name].ripe() for place in idle):
                    self._probe(candidate, idle, plans, losses, plain_ms)

    def _probe(
        self,
        candidate: Candidate,
        idle: Sequence[Place],
        plans: list[Plan],
        losses: LossLimit,
        plain_ms: float,
    ) -> None:
        name, costs = candidate.name, self._costs.draft(candidate.name)
        verify_ms = self._costs.widening(self._rows, self._widest)
        start_ms, step_ms, joining = costs.start, costs.step, False
        if any(place.option.candidate == name for place in self._places):
            start_ms, step_ms = 0.0, costs.row  # the passes are made anyway
        for place in idle:
            offer, track = place.outlook.offers[name], place.tracks[name]
            prices = Prices(1.0 / plain_ms, step_ms, start_ms, verify_ms)
            count = min(place.room(name), 2)
            if count > 1 and prices.cost(candidate, offer, 2) > _CHEAP:
                count = 1
            cost = prices.cost(candidate, offer, count)
            cost += offer.behind * costs.read.value / plain_ms
            if not costs.measured and self._rows == 1 and place.outlook.phrase_left is None:
                cost = 0.0  # a calibration may be wrong: the first tries are made whatever it says
            gain = place.option.gain
            if not track.due(gain, cost, self._rows, losses.idle, joining):
                continue
            if not losses.allows_try(cost):
                continue
            joining, losses.idle = True, 0
            start_ms, step_ms = 0.0, costs.row  # those that join pay for themselves alone
            place.probing, place.option = True, Option(name, count, 0.0, count)
            plans[self._places.index(place)] = Plan(name, count)
