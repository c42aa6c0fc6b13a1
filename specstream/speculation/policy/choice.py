"""Plans one step: which candidate proposes for each request, and how many tokens.

Proposals are worth ``E[accepted tokens] - worth * extra ms``, where *worth* is the expected long-run
rate in tokens per millisecond. By the renewal reward theorem, choosing the largest gain each step
maximises that rate. (Choosing the best ratio of each step does not: it stops too early in good steps
and too late in bad ones.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import sub
from typing import NamedTuple

from specstream.speculation.policy.costs import Costs
from specstream.speculation.policy.probing import Track, Tries
from specstream.speculation.policy.records import Candidate, Outlook, Plan
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
        thorough: Whether candidates are looked at that were passed over for long.
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
    thorough: bool = True
    candidate: str = "off"
    tokens: int = 0
    nodes: int = 0
    gain: float = 0.0
    probing: bool = False

    def room(self, name: str) -> int:
        """The longest proposal of a candidate."""
        offer = self.outlook.offers.get(name)
        track = self.tracks[name]
        if offer is None or track.mute or (track.settled and not self.thorough):
            return 0
        return min(self.most, offer.tokens)

    def expected(self, name: str) -> Iterable[tuple[tuple[float, float], int]]:
        """Of each token (level): as `RequestAcceptance.expected`; its tokens in the target pass."""
        offer = self.outlook.offers[name]
        found = self.tracks[name].acceptance.expected(offer, self.room(name))
        nodes = map(sub, offer.nodes, (0, *offer.nodes)) if offer.nodes else repeat(1)
        return zip(found, nodes, strict=False)

    def most_nodes(self, name: str) -> int:
        """Tokens in the target pass of one drafted token (level), at most."""
        nodes = self.outlook.offers[name].nodes
        return max(map(sub, nodes, (0, *nodes)), default=1) or 1

    def take(self, name: str, tokens: int, gain: float) -> None:
        """Choose a proposal."""
        nodes = self.outlook.offers[name].nodes
        self.candidate, self.tokens, self.gain = name, tokens, gain
        self.nodes = nodes[tokens - 1] if nodes else tokens


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
        self._plain = len(places) / costs.plain(len(places))
        self._around = worth * max(costs.other(True) - costs.other(False), 0.0)

    def choose(self) -> None:
        """Choose for each place; where nobody pays, among all candidates."""
        self._choose()
        without = [p for p in self._places if p.candidate == "off" and not p.thorough]
        for place in without:
            place.thorough = True
        if without:
            self._choose()

    def _choose(self) -> None:
        for candidate in self._candidates:
            name = candidate.name
            group = [p for p in self._places if p.room(name) > 0]
            while group:
                choice = self.best(candidate, group)
                chosen = list(zip(group, choice.tokens, choice.gains, strict=True))
                if all(tokens and gain > p.gain for p, tokens, gain in chosen):
                    if choice.gain > sum(p.gain for p in group):
                        for place, tokens, gain in chosen:
                            place.take(name, tokens, gain)
                    break
                # Passes are shared by fewer than was assumed.
                group = [p for p, tokens, gain in chosen if tokens and gain > p.gain]

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
        curves = [self._curve(candidate, place, group, row) for place in group]
        tops, lengths = [-math.inf] * len(group), [0] * len(group)  # up to the depth in question
        passes, found = start, Choice(-math.inf, lengths, tops)
        for depth in range(1, 1 + max(map(len, curves))):
            reached = 0.0
            for index, curve in enumerate(curves):
                if depth <= len(curve):
                    gain, chance = curve[depth - 1]
                    reached = max(reached, chance)
                    if gain > tops[index]:
                        tops[index], lengths[index] = gain, depth
            if candidate.passes == "each" or depth == 1:
                passes += step * reached
            if (gain := sum(tops) - passes) > found.gain:
                found = Choice(gain, lengths.copy(), tops.copy())
        return found

    def _curve(
        self, candidate: Candidate, place: Place, group: Sequence[Place], row: float
    ) -> list[tuple[float, float]]:
        """By depth: what a request gains, and the chance that its draft gets there.

        Without the passes that the group shares. Each is taken to propose as many tokens as the others,
        for what one more costs the target depends on all of them.
        """
        worth, count, levels = self._worth, len(group), list(place.expected(candidate.name))
        most = count * int(sum(nodes for _, nodes in levels)) + 2
        wider = self._costs.widening(self._width(group), most)
        gain, width, curve = -self._fixed(candidate, place), 0.0, list[tuple[float, float]]()
        for depth, ((chance, reached), nodes) in enumerate(levels, 1):
            if depth > 1 and chance <= _LEAST:
                break
            gain += chance - row * reached
            width += count * reached * nodes
            whole = int(width)
            ms = wider[whole] + (width - whole) * (wider[whole + 1] - wider[whole])
            curve.append((gain - worth * ms / count, reached))
        return curve

    def _fixed(self, candidate: Candidate, place: Place) -> float:
        """What a proposal costs whatever its length, besides what several share; in tokens."""
        if candidate.passes == "none":
            return self._around
        behind = place.outlook.offers[candidate.name].behind
        draft = self._costs.draft(candidate.name)
        # Until the text is read, plain decoding is the alternative: time is worth what that makes of it.
        return self._around + behind * draft.read.value * self._plain / place.rounds_left

    def _width(self, group: Sequence[Place]) -> int:
        """Tokens of the target pass, but for proposals of the group."""
        return len(self._places) + sum(p.nodes for p in self._places if p not in group)

    def plans(self) -> list[Plan]:
        """What was chosen. A draft that can be stopped goes on as long as `Chain` says."""
        found = [Plan(p.candidate, p.tokens, None, self._least(p)) for p in self._places]
        for candidate in self._candidates:
            name = candidate.name
            group = [p for p in self._places if p.candidate == name]
            if not candidate.stops or not group:
                continue
            draft, worth = self._costs.draft(name), self._worth
            width = self._width(group) + len(group)  # a token of each is proposed in any case
            nodes = max(p.most_nodes(name) for p in group)  # of a level
            most = sum(p.room(name) - 1 for p in group)
            costs = self._costs.widening(width, nodes * (most + 1))
            wider = [worth * ms for ms in costs[::nodes]]
            # One pass that drafts everything is paid: no further token needs another.
            again = worth if candidate.passes == "each" else 0.0
            lockstep = Lockstep(again * draft.step, again * draft.row, wider, len(group))
            for index, place in enumerate(self._places):
                if place.candidate == name and place.room(name) > 1:
                    room = place.room(name)
                    go_on = Chain(place.tracks[name].acceptance, lockstep, room)
                    found[index] = Plan(name, room, go_on, found[index].least)
        return found

    def _least(self, place: Place) -> float:
        """What a node of a tree costs in the target pass, in tokens; of a chain 0."""
        if place.nodes == place.tokens:
            return 0.0
        width = self._width((place,))
        return self._worth * self._costs.widening(width, place.nodes)[-1] / place.nodes

    def probe(self, plans: list[Plan], tries: Tries, plain_ms: float) -> None:
        """Give candidates that were not chosen a token now and then, all requests together."""
        for candidate in self._candidates:
            name = candidate.name
            idle = [p for p in self._places if p.candidate != name and p.room(name)]
            idle = [p for p in idle if p.outlook.phrase_left is None]
            if candidate.passes == "none" or not any(p.tracks[name].due() for p in idle):
                continue
            draft = self._costs.draft(name)
            around = len(self._places) * self._around / self._worth
            made = any(p.candidate == name for p in self._places)  # the passes are paid already
            ms = draft.row if made else draft.start + draft.step + around
            ms += self._costs.widening(self._width(()), 2)[1]
            for place in sorted(idle, key=lambda p: -p.tracks[name].idle):
                offer = place.outlook.offers[name]
                reading = offer.behind * draft.read.value
                cost = (ms + reading) / plain_ms + place.gain / len(self._places)
                if place.tracks[name].due(joining=True) and tries.pay(cost, sure=draft.known):
                    place.take(name, 1, 0.0)
                    place.probing = True
                    plans[self._places.index(place)] = Plan(name, 1)
                    ms = draft.row + self._costs.widening(self._width(()), 2)[1]
