"""One step being planned: who proposes for each of its requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from specstream.speculation.policy.costs import Costs
from specstream.speculation.policy.history import History
from specstream.speculation.policy.options import (
    OFF,
    Option,
    Prices,
    conceivable,
    draft_option,
    lookup_option,
)
from specstream.speculation.policy.probing import Account
from specstream.speculation.policy.records import Kind, Outlook, Plan
from specstream.speculation.policy.stopping import Confidence, Lockstep

__all__ = ["Place", "Round", "Rules", "cap"]

_CLEARLY = 0.1  # tokens: a draft that would lose less may pay in the next round
_RETURN = 1.3  # times what it takes that a draft must bring where others wait for it
_CHEAP = 0.5  # plain rounds that a try of two tokens may cost, else it is one of one


@dataclass(frozen=True, slots=True)
class Rules:
    """What is allowed: who may propose, how long, and whether a draft can be stopped midway."""

    kinds: frozenset[Kind]
    max_tokens: int
    interactive: bool


@dataclass(slots=True)
class Place:
    """A request in the step."""

    outlook: Outlook
    history: History
    cap: int
    reading_ms: float  # this round's share of what its draft has to read first
    can_draft: bool


def cap(outlook: Outlook, max_tokens: int) -> int:
    """The most tokens that can be of use to a request in this round."""
    most = min(outlook.budget, max_tokens)
    if outlook.phrase_left is not None:
        # The target's own token comes on top; what lies beyond the phrase is worth nothing yet.
        most = min(most, outlook.phrase_left - 1)
    return most


class _Crowd:
    """How many tokens others propose, counting at most the first k of each: entry k."""

    __slots__ = ("others",)

    def __init__(self, lengths: Sequence[float], deepest: int) -> None:
        self.others = [0.0] * (deepest + 1)
        for length in lengths:
            self.join(length)

    def join(self, length: float) -> None:
        """One more, with so many tokens."""
        for depth in range(1, len(self.others) if length else 0):
            self.others[depth] += min(depth, length)

    def leave(self, length: float) -> None:
        """One less."""
        for depth in range(1, len(self.others) if length else 0):
            self.others[depth] -= min(depth, length)


class Round:
    """Plans one step. The requests share the target's pass, and those that draft share its passes.

    Args:
        places: The requests.
        rules: What is allowed.
        costs: What things cost.
        worth: Tokens per ms that can be expected, over all requests.
        unevenness: Draft passes of a step by the mean length of its drafts (1: all equally long).
    """

    def __init__(
        self,
        places: Sequence[Place],
        rules: Rules,
        costs: Costs,
        worth: float,
        unevenness: float,
    ) -> None:
        self._places = places
        self._rules = rules
        self._costs = costs
        self._worth = worth
        self._unevenness = unevenness
        self._rows = len(places)
        self._around = max(costs.other(True) - costs.other(False), 0.0)
        self._entries = max(rules.max_tokens, 2)

    def choose(self, affordable: bool) -> None:
        """Set each history's option; drafts only if they are affordable."""
        able = sum(place.can_draft for place in self._places) if affordable else 0
        self._choose(able)
        drafting = self._drafting()
        if 0 < drafting < able:
            # A draft pass is shared by fewer than was thought: see who still wants it.
            self._choose(drafting)

    def _drafting(self) -> int:
        return sum(place.history.option.kind == "draft" for place in self._places)

    def _choose(self, sharers: int) -> None:
        step = start = 0.0
        if sharers:
            step = self._costs.draft_pass(sharers) / sharers
            start = self._costs.draft_start() / sharers
            if sharers > 1:
                step *= self._unevenness
            if self._rows > 1:
                # Of drafts at par nothing is left, where several wait for them, but longer gaps.
                step, start = _RETURN * step, _RETURN * start
        if self._rows == 1:
            verify = self._costs.widening(1, self._entries)
            self._choose_for(self._places[0], self._prices(step, start, verify), sharers > 0)
            return
        crowd = _Crowd([place.history.option.drafted for place in self._places], self._entries)
        for place in self._places:
            crowd.leave(place.history.option.drafted)
            prices = self._prices(step, start, self._widening(crowd))
            self._choose_for(place, prices, sharers > 0)
            crowd.join(place.history.option.drafted)

    def _prices(self, step_ms: float, start_ms: float, verify_ms: list[float]) -> Prices:
        longest = self._rules.max_tokens
        return Prices(self._worth, step_ms, start_ms, verify_ms, self._around, longest)

    def lookup_prices(self) -> Prices | None:
        """What lookup's offers cost a request that is alone; None where nothing may be looked up."""
        if "ngram" not in self._rules.kinds:
            return None
        return self._prices(0.0, 0.0, self._costs.widening(1, self._entries))

    def _widening(self, crowd: _Crowd) -> list[float]:
        """Entry k: what k tokens of one request add to the target's pass, ms."""
        # A first token is worth more than another's second, so it comes before that in the queue
        # for what room the pass has: what the k-th costs depends on the others' first k.
        ms, total = [0.0], 0.0
        for depth in range(1, self._entries + 1):
            width = self._rows + int(crowd.others[depth]) + depth - 1
            total += self._costs.step(width)
            ms.append(total)
        return ms

    def _choose_for(self, place: Place, prices: Prices, drafting: bool) -> None:
        """Take the option with the greatest gain."""
        outlook, history = place.outlook, place.history
        history.option = best = OFF
        if place.cap < 1:
            return
        if outlook.lookup > 0 and "ngram" in self._rules.kinds:
            found = min(place.cap, outlook.lookup)
            best = lookup_option(history.lookup, outlook.match, outlook.support, found, prices)
        history.given_up, history.hopeless = True, False
        if drafting and place.can_draft:
            free, extra = self._rules.interactive, place.reading_ms
            draft = draft_option(history.draft, place.cap, prices, free=free, extra_ms=extra)
            history.given_up = draft.gain <= 0.0
            history.hopeless = draft.gain < -_CLEARLY
            if draft.gain > best.gain:
                best = draft
        history.option = best

    def plans(self) -> list[Plan]:
        """What was chosen, as plans."""
        drafting = [p for p in self._places if p.history.option.kind == "draft"]
        if not drafting or not self._rules.interactive:
            if len(drafting) > 1:
                self._align(drafting)
            options = [place.history.option for place in self._places]
            return [Plan(option.kind, option.tokens) for option in options]
        # What is proposed in any case: lookup's tokens, and one of each draft.
        width = self._rows + len(drafting)
        width += sum(p.history.option.tokens for p in self._places if p not in drafting)
        ms = self._costs.widening(width, min(len(drafting) * self._rules.max_tokens, 128))
        row_ms = self._costs.draft_row()
        lockstep = Lockstep(
            self._worth * (self._costs.draft_pass() - row_ms),
            self._worth * row_ms,
            [self._worth * (b - a) for a, b in pairwise(ms)],
        )
        made = []
        for place in self._places:
            option = place.history.option
            go_on = None
            if option.kind == "draft" and option.tokens > 1:
                go_on = Confidence(place.history.draft, lockstep)
            made.append(Plan(option.kind, option.tokens, go_on))
        return made

    def _align(self, drafting: Sequence[Place]) -> None:
        """Fix lengths together, depth by depth: a pass is made if what it brings pays for it."""
        worth, row_ms = self._worth, self._costs.draft_row()
        per_pass = worth * (self._costs.draft_pass() - row_ms)
        width = self._rows + len(drafting)
        width += sum(p.history.option.tokens for p in self._places if p not in drafting)
        ms = self._costs.widening(width, 128)
        per_token = [worth * (row_ms + b - a) for a, b in pairwise(ms)]
        chances = [place.history.draft.fixed(place.cap) for place in drafting]
        lengths = [1] * len(drafting)
        taken = 0
        for depth in range(1, self._rules.max_tokens):
            able = [i for i, n in enumerate(lengths) if n == depth and depth < len(chances[i])]
            able.sort(key=lambda i: -chances[i][depth])
            gain, going = -per_pass, list[int]()
            for i in able:
                left = chances[i][depth] - per_token[min(taken + len(going), 127)]
                if left <= 0.0:
                    break
                gain += left
                going.append(i)
            if gain <= 0.0:
                break
            taken += len(going)
            for i in going:
                lengths[i] += 1
        for place, length in zip(drafting, lengths, strict=True):
            option = place.history.option
            place.history.option = option._replace(tokens=length, drafted=length)

    def probe(self, plans: list[Plan], account: Account, plain_ms: float) -> None:
        """Let drafts that are not the choice have a short try, once in a while, all together."""
        ripe = False
        for place in self._places:
            history = place.history
            history.probing = False
            if place.can_draft and history.option.kind != "draft":
                ripe = ripe or history.schedule.ripe(history.given_up)
        if ripe:
            self._probe(plans, account, plain_ms)

    def _probe(self, plans: list[Plan], account: Account, plain_ms: float) -> None:
        start_ms, pass_ms = self._costs.draft_start(), self._costs.draft_pass()
        verify = self._costs.widening(self._rows, self._entries)
        prices = self._prices(pass_ms / self._rows, start_ms / self._rows, verify)
        if self._drafting():  # then the passes are made anyway
            start_ms, pass_ms = 0.0, self._costs.draft_row()
        trying = False
        for index, place in enumerate(self._places):
            history = place.history
            if history.option.kind == "draft" or not place.can_draft:
                continue
            two_ms = start_ms + 2 * pass_ms + verify[2]
            count = min(place.cap, 2 if two_ms < _CHEAP * plain_ms else 1)
            ms = start_ms + count * pass_ms + verify[count] + self._costs.read(place.outlook.behind)
            # What holds all requests up costs each of them its part of a round.
            cost = ms / plain_ms
            if not self._may_try(place, cost, prices, account, joining=trying):
                continue
            if not trying:
                trying = True
                account.idle = 0
                start_ms, pass_ms = 0.0, self._costs.draft_row()  # who joins pays for itself alone
            history.probing = True
            history.option = Option("draft", count, 0.0, count)
            plans[index] = Plan("draft", count)

    def _may_try(
        self, place: Place, cost: float, prices: Prices, account: Account, *, joining: bool
    ) -> bool:
        """Whether it is this request's turn to try at ``cost`` plain rounds, with a chance to gain."""
        history = place.history
        alone = self._rows == 1 and place.outlook.phrase_left is None
        if alone and history.hopeless and not self._costs.drafted and account.unproven > 0:
            # A machine that was busy when the draft was timed mustn't decide for good.
            account.unproven -= 1
            return True
        if not history.schedule.due(
            history.given_up,
            history.option.gain,
            self._rows * cost,
            joining=joining,
            spared=account.spares(cost),
        ):
            return False
        hopeless = conceivable(place.cap, prices) <= history.option.gain
        if hopeless and not history.schedule.long_due():
            return False
        return account.affords_try(cost)
