"""Plan one step: which candidate proposes for each request, and how many tokens.

The gain of a proposal is ``E[accepted tokens] - worth * extra ms``, where *worth* is the expected
long-run rate in tokens per millisecond. By the renewal reward theorem, taking the largest gain in each
step maximises that rate. (Taking the best tokens-per-millisecond ratio of each step does not: it drafts
too little where drafts are good and too much where they are bad.)
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from specstream.drafting.policy.acceptance import ChainStop, Lockstep, RequestAcceptance
from specstream.drafting.policy.costs import Costs
from specstream.drafting.policy.records import Candidate, Offer, Outlook, RoundPlan

__all__ = ["ChosenPlan", "Step", "Tries"]

_SHARE = 0.025  # share of the time that tries may take
_FIRST, _MOST = 1.5, 3.0  # the budget of tries at first, and at most, in plain rounds


class Tries:
    """The budget for tries, in plain rounds: grows by 2.5 % of a round each round, up to a bound."""

    def __init__(self) -> None:
        self._saved = _FIRST

    def pay(self, cost: float, *, sure: bool = True) -> bool:
        """Pay for a try if the budget suffices; return whether it was paid.

        If the cost is not ``sure`` (never measured), the try is made in any case and takes what is left.
        """
        if sure and cost > self._saved:
            return False
        self._saved = max(self._saved - cost, 0.0)
        return True

    def enter(self) -> None:
        """Count a round."""
        self._saved = min(self._saved + _SHARE, _MOST)


@dataclass(slots=True, eq=False)
class ChosenPlan:
    """One request in a step, and the proposal chosen for it.

    Attributes:
        outlook: The request.
        most: Longest useful proposal, in tokens.
        tracks: How each candidate has done for the request, by name.
        rounds_left: Expected rounds until its reply ends; they share the cost of a draft's prefill.
        candidate: Name of the chosen candidate; "off": no proposal.
        tokens: Length of the proposal in tokens (a tree's depth).
        nodes: Tokens that the proposal adds to the target pass (a tree's nodes).
        gain: Expected gain in tokens, before costs that several requests share.
        probing: Whether the proposal is a try of a candidate that was not the best choice.
    """

    outlook: Outlook
    most: int
    tracks: Mapping[str, RequestAcceptance]
    rounds_left: float
    candidate: str = "off"
    tokens: int = 0
    nodes: int = 0
    gain: float = 0.0
    probing: bool = False

    def room(self, name: str) -> int:
        """Return the longest proposal of a candidate, in tokens; 0 if it may not propose."""
        offer = self.outlook.offers.get(name)
        return 0 if offer is None or self.tracks[name].mute else min(self.most, offer.tokens)

    def due(self, name: str) -> bool:
        """Return whether it is time to try a candidate that was not chosen."""
        track = self.tracks[name]
        return track.idle >= track.interval and self.room(name) > 0

    def take(self, name: str, tokens: int, gain: float) -> None:
        """Choose a proposal of ``tokens`` tokens by the candidate ``name``."""
        self.candidate, self.tokens, self.gain = name, tokens, gain
        levels = self.outlook.offers[name].nodes
        self.nodes = levels[tokens - 1] if levels else tokens


class Step:
    """The choice for one step.

    All requests share the target pass; requests of one candidate share its draft passes.

    Args:
        places: The requests.
        candidates: All candidates, lookups first: a draft is chosen only where it beats them.
        costs: The cost model.
        worth: Expected long-run rate of all requests together, in tokens per ms.
    """

    def __init__(
        self, places: Sequence[ChosenPlan], candidates: Collection[Candidate], costs: Costs, worth: float
    ) -> None:
        self._places, self._candidates = places, candidates
        self._costs, self._worth = costs, worth
        # Where the widest request decides what a pass takes, its width is shared like a draft pass.
        self._padded = costs.padded and len(places) > 1
        self._around = worth * (costs.other(True) - costs.other(False))

    def choose(self) -> None:
        """Choose a proposal for each request.

        One candidate after another takes over the requests that gain more by it than by what was chosen
        before. Where requests are padded to the widest one, one candidate proposes for all: a draft
        that others stood in for has to read their tokens first, which takes a pass of its own.
        """
        if self._padded:
            self._choose_one()
            return
        for candidate in self._candidates:
            group = [p for p in self._places if p.room(candidate.name)]
            while group:
                total, chosen = self.best(candidate, group)
                better = [p for p, (gain, _) in zip(group, chosen, strict=True) if gain > p.gain]
                if len(better) == len(group):
                    if total > sum(p.gain for p in group):
                        for place, (gain, drafted) in zip(group, chosen, strict=True):
                            place.take(candidate.name, math.ceil(drafted), gain)
                    break
                group = better  # fewer requests share the draft passes now: compute again

    def _choose_one(self) -> None:
        most, taken = 0.0, list[tuple[ChosenPlan, str, int, float]]()
        for candidate in self._candidates:
            if not (group := [p for p in self._places if p.room(candidate.name)]):
                continue
            total, chosen = self.best(candidate, group)
            if total > most:
                most, each = total, zip(group, chosen, strict=True)
                taken = [(p, candidate.name, math.ceil(n), gain) for p, (gain, n) in each]
        for place, name, tokens, gain in taken:
            if gain > 0.0:
                place.take(name, tokens, gain)

    def best(
        self, candidate: Candidate, group: Sequence[ChosenPlan]
    ) -> tuple[float, list[tuple[float, float]]]:
        """Find the number of draft passes at which a group of requests gains most.

        Each request proposes the prefix of its drafted tokens with the largest gain for that request.

        Returns:
            The gain of the group; for each request its gain before shared costs, and its draft passes.
        """
        draft, worth, count = self._costs.draft(candidate.name), self._worth, len(group)
        start, step = worth * draft.start, worth * (draft.step - draft.row)
        if candidate.passes == "one":
            start, step = start + step, 0.0
        width = self._width(group)
        offers = [place.outlook.offers[candidate.name] for place in group]
        # The best of each request up to each number of draft passes.
        curves = [list(accumulate(self._curve(candidate, p, width, count), max)) for p in group]

        def total(chosen: Sequence[tuple[float, float]]) -> float:
            shared = start + step * draft.made(max(n for _, n in chosen))
            if self._padded:
                nodes = (_nodes(o, n) for o, (_, n) in zip(offers, chosen, strict=True))
                shared += worth * self._padding(max(nodes))
            return sum(gain for gain, _ in chosen) - shared

        depths = range(max(map(len, curves)))
        choices = ([curve[min(n, len(curve) - 1)] for curve in curves] for n in depths)
        best = max(choices, key=total)
        return total(best), best

    def _curve(
        self, candidate: Candidate, place: ChosenPlan, width: int, count: int
    ) -> list[tuple[float, float]]:
        """Return (gain, draft passes) for each length that a request may propose, ascending.

        Costs of draft passes that the group shares are left out. The target pass is priced as if each
        of the group's ``count`` requests proposed the same number of tokens.
        """
        name, worth = candidate.name, self._worth
        offer, room = place.outlook.offers[name], place.room(name)
        draft, acceptance = self._costs.draft(name), place.tracks[name]
        if candidate.stops:  # its confidence ends the draft: one expected length
            lengths = [acceptance.free(offer, room)]
        else:
            survival = acceptance.survival(offer, room)
            lengths = [(sure, float(n)) for n, sure in enumerate(accumulate(survival), 1)]
        wider = [0.0] * len(lengths)
        if not self._padded:
            nodes = [_nodes(offer, n) for _, n in lengths]
            wider = self._costs.widening(width, [round(count * n) for n in nodes])
        each, row = worth / count, worth * draft.row
        fixed = self._around + worth * offer.behind * draft.read / place.rounds_left
        return [
            (accepted - row * drafted - each * ms - fixed, drafted)
            for (accepted, drafted), ms in zip(lengths, wider, strict=True)
        ]

    def _padding(self, nodes: float) -> float:
        """Return what it takes to widen all requests of the target pass to so many nodes, in ms."""
        rows = len(self._places)
        (wider,) = self._costs.widening(rows, (round(rows * nodes),))
        return wider

    def _width(self, group: Sequence[ChosenPlan]) -> int:
        """Return the tokens of the target pass without the proposals of the group."""
        return len(self._places) + sum(p.nodes for p in self._places if p not in group)

    def probe(self, tries: Tries) -> None:
        """Choose one-token tries of candidates that were not chosen, where they are due.

        Lookups need none: what they offer is compared with the text in any case.
        """
        rows, plain_ms = len(self._places), self._costs.plain(len(self._places))
        for candidate in [c for c in self._candidates if c.passes != "none"]:
            name, draft = candidate.name, self._costs.draft(candidate.name)
            ms = draft.start + draft.step + rows * self._around / self._worth
            for place in [p for p in self._places if p.candidate != name and p.due(name)]:
                reading = place.outlook.offers[name].behind * draft.read
                (wider,) = self._costs.widening(self._width(()), (1,))
                cost = (ms + wider + reading) / plain_ms + place.gain / rows
                if tries.pay(cost, sure=draft.rounds > 0):
                    place.take(name, 1, 0.0)
                    place.probing = True
                    ms = draft.row  # requests that are tried together share the draft pass

    def plans(self) -> list[RoundPlan]:
        """Return the chosen plans. A draft that can be stopped goes on as long as `ChainStop` says."""
        plans, locksteps = list[RoundPlan](), dict[str, Lockstep]()
        stops = {candidate.name: candidate for candidate in self._candidates if candidate.stops}
        for place in self._places:
            name, tokens, go_on = place.candidate, place.tokens, None
            if name in stops and not place.probing and place.room(name) > 1:
                if name not in locksteps:
                    locksteps[name] = self._lockstep(stops[name])
                tokens = place.room(name)
                go_on = ChainStop(place.tracks[name], locksteps[name], tokens)
            plans.append(RoundPlan(name, tokens, go_on, self._least(place)))
        return plans

    def _lockstep(self, candidate: Candidate) -> Lockstep:
        """Return the costs that the requests drafting by one candidate share."""
        name, draft = candidate.name, self._costs.draft(candidate.name)
        group = [p for p in self._places if p.candidate == name and not p.probing]
        # A tree that stops by its confidence: each further level is priced like the first one.
        nodes = max((p.outlook.offers[name].nodes or (1,))[0] for p in group)
        most = sum(p.room(name) - 1 for p in group)
        width = self._width(group) + len(group)  # each proposes its first token in any case
        costs = self._costs.widening(width, range(0, nodes * (most + 2), nodes))
        wider = [self._worth * ms for ms in costs]
        # A candidate that drafts all tokens in one pass needs no further pass for another token.
        again = self._worth if candidate.passes == "each" else 0.0
        return Lockstep(again * draft.step, again * draft.row, wider, len(group))

    def _least(self, place: ChosenPlan) -> float:
        """Return the cost of one tree node in the target pass, in tokens; 0 for a chain."""
        if place.nodes == place.tokens:
            return 0.0
        (wider,) = self._costs.widening(self._width((place,)), (place.nodes,))
        return self._worth * wider / place.nodes


def _nodes(offer: Offer, tokens: float) -> float:
    """Return the tokens that a proposal of so many tokens (levels) adds to the target pass."""
    if not offer.nodes:
        return tokens
    return offer.nodes[min(math.ceil(tokens), len(offer.nodes)) - 1]
