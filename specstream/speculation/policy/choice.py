"""Plans one step: which candidate proposes for each request, and how many tokens.

Proposals are worth ``E[accepted tokens] - worth * extra ms``, where *worth* is the expected long-run
rate in tokens per millisecond. By the renewal reward theorem, choosing the largest gain each step
maximises that rate. (Choosing the best ratio of each step does not: it stops too early in good steps
and too late in bad ones.)
"""

from __future__ import annotations

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

_LEAST = 0.01  # chance of a token that is looked at


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
        """What a candidate had best propose for a group.

        Tokens are taken in the order of their chance to be accepted, as many as gain most; for each
        number of draft passes, where several requests share them. A request that waits while others
        draft is delayed by more than it would have cost to draft for it, too: its time counts twice.
        """
        if len(group) == 1:
            return self._alone(candidate, group[0])
        worth, rows, each = self._worth, len(self._places), candidate.passes == "each"
        name = candidate.name
        tokens = [
            (chance, depth, index, reached, reached * nodes)
            for index, place in enumerate(group)
            for depth, ((chance, reached), nodes) in enumerate(place.expected(name), 1)
            if depth == 1 or chance > _LEAST
        ]
        start = step = row = 0.0
        if candidate.passes != "none":
            draft = self._costs.draft(name)
            row = worth * draft.row
            start, step = worth * draft.start, worth * draft.step - row
        fixed = [self._fixed(candidate, place) for place in group]
        longest = max(token[1] for token in tokens)
        tokens.sort(key=_chance, reverse=True)
        limits = range(1, longest + 1) if each else (longest,)
        most = int(sum(token[4] for token in tokens))
        wider = self._costs.widening(self._width(group), most + 2)
        best, found = float("-inf"), (0, 0)
        for limit in limits:
            if 1 < limit < longest:
                last = [token for token in tokens if token[1] == limit]
                if sum(token[0] for token in last) <= step * max(token[3] for token in last):
                    break  # no further pass can pay
            gain, width, members, shared = 0.0, 0.0, 0, start
            missed = [1.0] * (limit + 1)  # chance that a pass is not made
            for count, (chance, depth, index, reached, nodes) in enumerate(tokens, 1):
                if depth > limit:
                    continue
                if depth == 1:
                    members += 1
                    gain -= fixed[index]
                if each or depth == 1:
                    shared += step * missed[depth] * reached
                    missed[depth] *= 1.0 - reached
                gain += chance - row * reached
                width += nodes
                low = wider[int(width)]
                ms = low + (width - int(width)) * (wider[int(width) + 1] - low)
                net = gain - worth * ms - shared * (2.0 - members / rows)
                if net > best:
                    best, found, price = net, (limit, count), worth * ms / width
        limit, count = found
        lengths, gains = [0] * len(group), [-cost for cost in fixed]
        for chance, depth, index, reached, nodes in tokens[:count]:
            if depth <= limit:
                lengths[index] += 1
                gains[index] += chance - row * reached - nodes * price
        return Choice(best, lengths, gains)

    def _alone(self, candidate: Candidate, place: Place) -> Choice:
        """`best` for one request: its tokens come in order, and it pays for each pass."""
        worth, each = self._worth, candidate.passes == "each"
        start = step = row = 0.0
        if candidate.passes != "none":
            draft = self._costs.draft(candidate.name)
            start, step, row = (
                worth * draft.start,
                worth * (draft.step - draft.row),
                worth * draft.row,
            )
        levels = list(place.expected(candidate.name))
        wider = self._costs.widening(self._width((place,)), int(sum(n for _, n in levels)) + 2)
        waiting = 2.0 - 1.0 / len(self._places)
        gain, width, passes = -self._fixed(candidate, place), 0.0, start
        best, tokens, own = float("-inf"), 0, 0.0
        for depth, ((chance, reached), nodes) in enumerate(levels, 1):
            if depth > 1 and chance <= _LEAST:
                break
            if each or depth == 1:
                passes += step * reached
            gain += chance - row * reached
            width += reached * nodes
            whole = int(width)
            wide = gain - worth * (
                wider[whole] + (width - whole) * (wider[whole + 1] - wider[whole])
            )
            if wide - waiting * passes > best:
                best, tokens, own = wide - waiting * passes, depth, wide
        return Choice(best, [tokens], [own])

    def _fixed(self, candidate: Candidate, place: Place) -> float:
        """What a proposal costs whatever its length, besides what several share; in tokens."""
        if candidate.passes == "none":
            return self._around
        behind, draft = (
            place.outlook.offers[candidate.name].behind,
            self._costs.draft(candidate.name),
        )
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


def _chance(token: tuple[float, int, int, float, float]) -> float:
    return token[0]
