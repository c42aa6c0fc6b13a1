"""Plans one step: which candidate proposes for each request, and how many tokens.

Proposals are worth ``E[accepted tokens] - worth * extra ms``, where *worth* is the expected long-run
rate in tokens per millisecond. By the renewal reward theorem, choosing the largest gain each step
maximises that rate. (Choosing the best ratio of each step does not: it stops too early in good steps
and too late in bad ones.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from specstream.speculation.policy.costs import Costs
from specstream.speculation.policy.probing import Track, Tries
from specstream.speculation.policy.records import Candidate, Offer, Outlook, Plan
from specstream.speculation.policy.stopping import Chain, Lockstep

__all__ = ["Choice", "Place", "Step"]

_LEAST = 0.03  # chance of a token that is looked at: less hardly pays for its part of any pass


@dataclass(slots=True, eq=False)
class Place:
    """A request in a step, and what was chosen for it.

    Attributes:
        outlook: The request.
        most: The longest useful proposal.
        tracks: Its record with each candidate.
        rounds_left: Rounds that share the cost of reading its text for a draft.
        candidate: The chosen one.
        tokens: Length of the proposal (of a tree: its depth).
        nodes: Tokens of the proposal.
        gain: Expected, in tokens, without costs that several requests share.
        probing: Whether it is a try.
    """

    outlook: Outlook
    most: int
    tracks: dict[str, Track]
    rounds_left: float
    candidate: str = "off"
    tokens: int = 0
    nodes: int = 0
    gain: float = 0.0
    probing: bool = False

    def room(self, name: str) -> int:
        """The longest proposal of a candidate."""
        offer = self.outlook.offers.get(name)
        return 0 if offer is None or self.tracks[name].mute else min(self.most, offer.tokens)

    def take(self, name: str, tokens: int, gain: float) -> None:
        """Choose a proposal."""
        self.candidate, self.tokens, self.gain = name, tokens, gain
        self.nodes = _nodes(self.outlook.offers[name], tokens)


def _nodes(offer: Offer, tokens: int) -> int:
    """Tokens in the target pass of a proposal so long (of a tree: so deep)."""
    return offer.nodes[tokens - 1] if offer.nodes else tokens


class Choice(NamedTuple):
    """What one candidate had best propose for several requests.

    Attributes:
        gain: Expected, in tokens.
        tokens: The length for each; 0: nothing.
        gains: Each one's part of the gain, before costs that they share.
    """

    gain: float
    tokens: list[int]
    gains: list[float]


class Step:
    """One step. Its requests share the target pass; those of one candidate share its draft passes.

    Args:
        places: The requests.
        candidates: All candidates, lookups first: a draft has to be better than they.
        costs: The cost model.
        worth: Expected tokens per ms, over all requests.
    """

    def __init__(
        self, places: Sequence[Place], candidates: Sequence[Candidate], costs: Costs, worth: float
    ) -> None:
        self._places, self._candidates = places, candidates
        self._costs, self._worth = costs, worth
        self._around = worth * (costs.other(True) - costs.other(False))

    def choose(self) -> None:
        """Choose for each place: one candidate after another takes over those that gain more by it."""
        for candidate in self._candidates:
            group = [p for p in self._places if self._may_gain(candidate, p)]
            while group:
                choice = self.best(candidate, group)
                chosen = list(zip(group, choice.tokens, choice.gains, strict=True))
                better = [p for p, tokens, gain in chosen if tokens and gain > p.gain]
                if len(better) == len(group):
                    if choice.gain > sum(p.gain for p in group):
                        for place, tokens, gain in chosen:
                            place.take(candidate.name, tokens, gain)
                    break
                group = better  # passes are shared by fewer than was assumed

    def _may_gain(self, candidate: Candidate, place: Place) -> bool:
        """Whether it might gain more than what was chosen, if the target pass grew for nothing.

        Most heads of an engine with many can't, and their curves need not be computed.
        """
        name, room = candidate.name, place.room(candidate.name)
        if not room or place.gain <= 0.0 or not candidate.stops:
            return room > 0
        ((accepted, _),) = place.tracks[name].acceptance.free(place.outlook.offers[name], (room,))
        if len(self._places) == 1:  # else others may pay for the passes
            accepted -= self._worth * self._costs.draft(name).passes(1)
        return accepted - self._fixed(candidate, place) > place.gain

    def best(self, candidate: Candidate, group: Sequence[Place]) -> Choice:
        """What a candidate had best propose for a group: the number of passes that gains most.

        Each request takes as many of their tokens as gain most for itself. A request that waits while
        others draft is delayed by more than it would have cost to draft for it, too: its time counts
        twice.
        """
        start = step = row = 0.0
        if candidate.passes != "none":
            draft = self._costs.draft(candidate.name)
            waiting = self._worth * (2.0 - len(group) / len(self._places))
            start, step = waiting * draft.start, waiting * (draft.step - draft.row)
            row = self._worth * draft.row
            if candidate.passes == "one":
                start, step = start + step, 0.0
        curves = [self._curve(candidate, place, group, row) for place in group]
        if len(curves) == 1:
            gain, fewer, own = max((own - start - step * n, -n, own) for own, n in curves[0])
            return Choice(gain, [math.ceil(-fewer)], [own])
        tops, lengths = [-math.inf] * len(group), [0] * len(group)  # up to the depth in question
        found = Choice(-math.inf, lengths, tops)
        for depth in range(max(map(len, curves))):
            passes = 0.0
            for index, curve in enumerate(curves):
                if depth < len(curve):
                    gain, drafted = curve[depth]
                    passes = max(passes, drafted)
                    if gain > tops[index]:
                        tops[index], lengths[index] = gain, math.ceil(drafted)
            if (gain := sum(tops) - start - step * passes) > found.gain:
                found = Choice(gain, lengths.copy(), tops.copy())
        return found

    def _curve(
        self, candidate: Candidate, place: Place, group: Sequence[Place], row: float
    ) -> list[tuple[float, float]]:
        """What a request gains by lengths, ascending, and the lengths: those that it may choose from.

        Without the passes that the group shares. Each is taken to propose as many tokens as the others,
        for what one more costs the target depends on all of them.
        """
        name, count, width = candidate.name, len(group), self._width(group)
        offer, room = place.outlook.offers[name], place.room(name)
        acceptance = place.tracks[name].acceptance
        if candidate.stops:  # its confidence decides how long it gets
            lengths = acceptance.free(offer, [most for most in (1, 2, 4, room) if most <= room])
        else:
            chances = acceptance.survival(offer, room)
            end = next((n for n, chance in enumerate(chances) if n and chance <= _LEAST), room)
            lengths = [(sure, float(n)) for n, sure in enumerate(accumulate(chances[:end]), 1)]
        nodes = [offer.nodes[math.ceil(n) - 1] if offer.nodes else n for _, n in lengths]
        wider = self._costs.widening(width, [round(count * n) for n in nodes])
        each, fixed = self._worth / count, self._fixed(candidate, place)
        return [
            (accepted - row * drafted - each * ms - fixed, drafted)
            for (accepted, drafted), ms in zip(lengths, wider, strict=True)
        ]

    def _fixed(self, candidate: Candidate, place: Place) -> float:
        """What a proposal costs whatever its length, besides what several share; in tokens."""
        behind = place.outlook.offers[candidate.name].behind
        if not behind or candidate.passes == "none":
            return self._around
        # Until the text is read, plain decoding is the alternative: time is worth what that makes of it.
        rows = len(self._places)
        reading = behind * self._costs.draft(candidate.name).read / place.rounds_left
        return self._around + reading * rows / self._costs.plain(rows)

    def _width(self, group: Sequence[Place]) -> int:
        """Tokens of the target pass, but for proposals of the group."""
        return len(self._places) + sum(p.nodes for p in self._places if p not in group)

    def plans(self) -> list[Plan]:
        """What was chosen. A draft that can be stopped goes on as long as `Chain` says."""
        found = [Plan(p.candidate, p.tokens, None, self._least(p)) for p in self._places]
        for candidate in self._candidates:
            group = [p for p in self._places if p.candidate == candidate.name]
            if candidate.stops and group:
                lockstep = self._lockstep(candidate, group)
                for index, place in enumerate(self._places):
                    room = place.room(candidate.name)
                    if place.candidate == candidate.name and room > 1:
                        acceptance = place.tracks[candidate.name].acceptance
                        go_on = Chain(acceptance, lockstep, room)
                        found[index] = Plan(candidate.name, room, go_on, found[index].least)
        return found

    def _lockstep(self, candidate: Candidate, group: Sequence[Place]) -> Lockstep:
        draft, offers = self._costs.draft(candidate.name), [p.outlook.offers for p in group]
        # A level that may be stopped at is priced with as many nodes as the first has.
        nodes = max((o[candidate.name].nodes or (1,))[0] for o in offers)
        most = sum(p.room(candidate.name) - 1 for p in group)
        width = self._width(group) + len(group)  # a token of each is proposed in any case
        costs = self._costs.widening(width, range(0, nodes * (most + 2), nodes))
        wider = [self._worth * ms for ms in costs]
        # One pass that drafts everything is paid: no further token needs another.
        again = self._worth if candidate.passes == "each" else 0.0
        return Lockstep(again * draft.step, again * draft.row, wider, len(group))

    def _least(self, place: Place) -> float:
        """What a node of a tree costs in the target pass, in tokens; of a chain 0."""
        if place.nodes == place.tokens:
            return 0.0
        (wider,) = self._costs.widening(self._width((place,)), (place.nodes,))
        return self._worth * wider / place.nodes

    def probe(self, plans: list[Plan], tries: Tries) -> None:
        """Give candidates that were not chosen a token now and then, all requests together."""
        rows, plain_ms = len(self._places), self._costs.plain(len(self._places))
        for candidate in self._candidates:
            name = candidate.name
            idle = [p for p in self._places if p.candidate != name and p.room(name)]
            idle = [p for p in idle if p.outlook.phrase_left is None]
            if candidate.passes == "none" or not any(p.tracks[name].due() for p in idle):
                continue
            draft = self._costs.draft(name)
            made = any(p.candidate == name for p in self._places)  # the passes are paid already
            ms = draft.row if made else draft.start + draft.step + rows * self._around / self._worth
            for place in sorted(idle, key=lambda p: -p.tracks[name].idle):
                reading = place.outlook.offers[name].behind * draft.read
                (wider,) = self._costs.widening(self._width(()), (1,))
                cost = (ms + wider + reading) / plain_ms + place.gain / rows
                if place.tracks[name].due(joining=True) and tries.pay(cost, sure=draft.rounds > 0):
                    place.take(name, 1, 0.0)
                    place.probing = True
                    plans[self._places.index(place)] = Plan(name, 1)
                    ms = draft.row
