"""Decides each round, for each request, who proposes and how many tokens. No torch, no clock.

The engine asks `Controller.plan` before a step and tells `Controller.observe` what became of it.
Nothing in here can change *what* is generated, only how fast: proposals are judged all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from specstream.speculation.policy.costs import Costs
from specstream.speculation.policy.estimates import Average
from specstream.speculation.policy.explain import Digest, explain
from specstream.speculation.policy.history import Common, History
from specstream.speculation.policy.options import OFF, lookup_option
from specstream.speculation.policy.probing import Account
from specstream.speculation.policy.records import (
    Explanation,
    Kind,
    Outcome,
    Outlook,
    Plan,
    RoundTimes,
)
from specstream.speculation.policy.rounds import Place, Round, Rules, cap

__all__ = ["Controller"]

_TOGETHER = 8  # rounds that are learned from at once, where nothing hangs on the latest
_REST = 16  # rounds between two looks at a draft that was given up
_RECOVERY = 4  # and at one that can't be afforded
_NOBODY = Plan("off", 0)
_FAR = 1.5  # a round counts as at most so many times dearer, or cheaper, than was expected


class Controller:
    """Chooses proposer and length so that tokens per millisecond are as many as can be expected.

    Args:
        kinds: Who may propose; "off" always may.
        max_tokens: The longest proposal.
        interactive: Whether drafting can be stopped token by token at no cost (`Plan.go_on`).
        costs: The engine's cost model, seeded by a calibration.
    """

    def __init__(
        self, *, kinds: frozenset[Kind], max_tokens: int, interactive: bool, costs: Costs
    ) -> None:
        if max_tokens < 1:
            raise ValueError("max_tokens must be at least 1")
        self.costs = costs
        self._rules = Rules(kinds, max_tokens, interactive)
        self._common = {True: Common(greedy=True), False: Common(greedy=False)}
        self._histories: dict[int, History] = {}
        self._account = Account()
        self._tokens = Average(1.5, 2.0, 60.0)
        self._cost = Average(1.1, 2.0, 60.0)
        self._reply = Average(48.0, 1.0, 30.0)
        self._unevenness = Average(1.3, 2.0, 60.0)
        self._digest = Digest(256.0)
        # Plain rounds still to be learned from; with whose they were, where that counts.
        self._later: list[tuple[RoundTimes, tuple[History, Outcome] | None]] = []
        # Rounds still to be summed up.
        self._told: list[tuple[Digest, Outcome, float, int, bool]] = []

    # Before a step.

    def plan(self, outlooks: Sequence[Outlook]) -> list[Plan]:
        """One plan per request, for the step that is about to be made."""
        if not outlooks:
            return []
        rows = len(outlooks)
        if rows == 1 and (plan := self._resting(outlooks[0])) is not None:
            return [plan]
        self._settle()
        places = [self._place(outlook) for outlook in outlooks]
        plain_ms = self.costs.plain(rows)
        # Floored by the rate of plain decoding, which can always be had.
        rate = sum(p.history.tokens.value / p.history.cost.value for p in places)
        worth = max(rate, float(rows)) / plain_ms
        step = Round(places, self._rules, self.costs, worth, self._unevenness.value)
        affordable = self._account.affords()
        step.choose(affordable)
        plans = step.plans()
        if "draft" in self._rules.kinds:
            for place in places:
                place.history.schedule.wait(place.cap > 0)
            step.probe(plans, self._account, plain_ms)
        if rows == 1:
            self._rest(places[0], affordable)
            places[0].history.prices = step.lookup_prices()
        return plans

    def _rest(self, place: Place, affordable: bool) -> None:
        """Decide how long a request that is alone need not be asked about its draft.

        Between two tries nothing is learned of a draft that was given up, so where it is far from
        paying, it will be in the next rounds, too.
        """
        history = place.history
        if place.outlook.phrase_left is not None:
            return  # what pays will be another matter once the phrase is over
        if history.mute or "draft" not in self._rules.kinds:
            history.rest = _REST
        elif place.can_draft and history.hopeless and not history.probing:
            history.rest = min(max(history.schedule.turn() - 1, 0), _REST)
        elif not affordable and not history.probing:
            history.rest = _RECOVERY

    def _resting(self, outlook: Outlook) -> Plan | None:
        """The plan for a request that is alone and whose draft rests: lookup's, or nobody's."""
        history = self._histories.get(outlook.id)
        if history is None or history.rest < 1:
            return None
        prices = history.prices
        history.rest -= 1
        most = cap(outlook, self._rules.max_tokens)
        history.behind, history.able, history.probing = outlook.behind, most > 0, False
        history.schedule.wait(most > 0)
        option = OFF
        if most > 0 and outlook.lookup > 0 and prices is not None:
            found = min(most, outlook.lookup)
            option = lookup_option(history.lookup, outlook.match, outlook.support, found, prices)
        history.option = option
        return Plan("ngram", option.tokens) if option.tokens else _NOBODY

    def _place(self, outlook: Outlook) -> Place:
        history = self._histories.get(outlook.id)
        if history is None:
            history = History(self._common[outlook.greedy], self._tokens, self._cost)
            self._histories[outlook.id] = history
        most = cap(outlook, self._rules.max_tokens)
        history.behind = outlook.behind
        history.able = most > 0
        history.rest = 0
        reading_ms = self._reading(outlook, history) if outlook.behind > 0 else 0.0
        can_draft = most > 0 and "draft" in self._rules.kinds and not history.mute
        return Place(outlook, history, most, reading_ms, can_draft)

    def _reading(self, outlook: Outlook, history: History) -> float:
        """One round's share of what the draft has to read before it can begin, ms."""
        ahead = min(self._reply.value, outlook.budget + 1.0)
        if outlook.phrase_left is not None:
            ahead = min(ahead, float(outlook.phrase_left))
        rounds = max(1.0, ahead / history.tokens.value)
        return self.costs.read(outlook.behind) / rounds

    # After a step.

    def observe(self, times: RoundTimes, outcomes: Sequence[Outcome]) -> None:
        """Learn from the step that was made of the latest plans."""
        rows = len(outcomes)
        if not rows or self._plain(times, outcomes):
            return
        self._settle()
        drafting = sum(o.plan.proposer == "draft" and o.drafted > 0 for o in outcomes)
        proposed = sum(o.drafted for o in outcomes)
        if drafting > 1:
            mean = sum(o.drafted for o in outcomes if o.plan.proposer == "draft") / drafting
            self._unevenness.learn(times.draft_forwards / mean)
        costs = self.costs
        costs.observe(times, drafting, proposed)
        plain_ms = costs.plain(rows)
        ms = costs.draft(times.draft_forwards if drafting else 0, max(drafting, 1))
        ms += costs.verify(rows + proposed, rows) + rows * costs.other(proposed > 0)
        cost = ms / plain_ms
        # Reading prompts is paid once for a whole reply: no part of what a round costs from now on.
        read = costs.read(times.draft_read) / plain_ms
        choosing = min(times.plan_ms / plain_ms, 1.0)
        spent = cost + read + choosing
        if times.rows == rows and times.tokens == rows + proposed:
            spent = _near(spent, times, plain_ms)
        owed = 0.0
        for outcome in outcomes:
            history = self._histories.get(outcome.id)
            if history is None:
                continue
            history.observe(outcome, self._rules.max_tokens)
            owed += history.repay((outcome.accepted + 1 - cost) / rows, read / rows)
            if history.able:
                # Where lookup finds nothing, a token saved is worth what it would have cost there, and
                # not what it costs in a passage that is being repeated. Time that is shared is
                # everybody's, though.
                if rows > 1 or outcome.plan.proposer != "ngram":
                    history.learn_rate(outcome.accepted + 1.0, cost + choosing)
                    self._tokens.learn(outcome.accepted + 1.0)
                    self._cost.learn(cost + choosing)
                self._tell(history, outcome, spent, rows)
        tokens = (sum(o.accepted for o in outcomes) + rows) / rows
        self._account.enter(cost + owed - tokens if drafting else 0.0)

    def observe_aside(self, times: RoundTimes) -> None:
        """Learn the cost of a step of requests that want no proposals, whose own rounds are plain.

        It is the best there is to tell what speculation is worth: rounds in a row, as they would be
        without it.
        """
        self._put_off(times, None)

    def _plain(self, times: RoundTimes, outcomes: Sequence[Outcome]) -> bool:
        """Whether the step was a plain one of a request that is alone, which can be learned later.

        What such a round says of lookup is learned at once, since the next choice may hang on it.
        """
        outcome = outcomes[0]
        if len(outcomes) > 1 or times.rows != 1 or times.tokens != 1 or outcome.plan != _NOBODY:
            return False
        history = self._histories.get(outcome.id)
        if history is None or not history.able:
            return False
        if outcome.offered > 0:
            history.observe_lookup(outcome)
        self._put_off(times, (history, outcome))
        return True

    def _put_off(self, times: RoundTimes, own: tuple[History, Outcome] | None) -> None:
        """Learn from a plain round later, with others like it.

        Code that runs once between two passes finds its memory gone from the caches, which makes it
        several times dearer than code that runs eight times in a row.
        """
        self._later.append((times, own))
        if len(self._later) >= _TOGETHER:
            self._settle()

    def _settle(self) -> None:
        """Learn from the plain rounds that were put off."""
        costs = self.costs
        later, self._later = self._later, []
        for times, own in later:
            costs.observe(times, 0, 0)
            if own is None:
                continue
            history, outcome = own
            plain_ms = costs.plain()
            choosing = min(times.plan_ms / plain_ms, 1.0)
            history.committed += 1
            history.learn_rate(1.0, 1.0 + choosing)
            self._tokens.learn(1.0)
            self._cost.learn(1.0 + choosing)
            spent = _near(1.0 + choosing, times, plain_ms)
            self._tell(history, outcome, spent, 1)
            self._account.enter(0.0)

    def _tell(self, history: History, outcome: Outcome, spent: float, rows: int) -> None:
        """Put down what a round came to. No choice hangs on it, so it is summed up later."""
        self._told.append((history.digest, outcome, spent, rows, history.probing))
        if len(self._told) >= _TOGETHER:
            self._sum_up()

    def _sum_up(self) -> None:
        told, self._told = self._told, []
        for own, outcome, spent, rows, probing in told:
            own.learn(outcome, spent, rows, probing)
            self._digest.learn(outcome, spent, rows, probing)

    def forget(self, request_id: int) -> None:
        """The request is over. What it taught about all requests stays. Idempotent."""
        self._settle()
        history = self._histories.pop(request_id, None)
        if history is not None and history.committed:
            self._reply.learn(float(history.committed))
            self._account.enter(history.debt)
            history.close()

    def explain(self, request_id: int | None = None) -> Explanation:
        """Why it does what it does, for one request or for all of late."""
        self._settle()
        self._sum_up()
        history = self._histories.get(request_id) if request_id is not None else None
        digest = history.digest if history is not None else self._digest
        return explain(digest, self.costs, self._rules.kinds)


def _near(expected: float, times: RoundTimes, plain_ms: float) -> float:
    """What a step took, in plain ones: as it was seen, unless that is far from what was expected."""
    seen = times.draft_ms + times.verify_ms + times.other_ms + times.plan_ms
    return min(max(seen / plain_ms, expected / _FAR), expected * _FAR)
