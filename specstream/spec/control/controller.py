"""Decides each round, for each request, who proposes and how many tokens. No torch, no clock.

The engine asks `Controller.plan` before a step and tells `Controller.observe` what became of it.
Nothing in here can change *what* is generated, only how fast: proposals are judged all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from specstream.spec.control.costs import Costs
from specstream.spec.control.estimates import Average
from specstream.spec.control.explain import Digest, explain
from specstream.spec.control.history import Common, History
from specstream.spec.control.options import Option, Prices, conceivable, draft_option, lookup_option
from specstream.spec.control.probing import Account
from specstream.spec.control.records import Explanation, Kind, Outcome, Outlook, Plan, RoundTimes

__all__ = ["Controller"]

_SHORTEST_TABLE = 8  # widths that the price of a further token is averaged over


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
        self._kinds = kinds
        self._max_tokens = max_tokens
        self._interactive = interactive
        self._common = {True: Common(greedy=True), False: Common(greedy=False)}
        self._histories: dict[int, History] = {}
        self._account = Account()
        self._tokens = Average(1.5, 2.0, 60.0)
        self._cost = Average(1.1, 2.0, 60.0)
        self._reply = Average(48.0, 1.0, 30.0)
        self._digest = Digest(256.0)

    # Before a step.

    def plan(self, outlooks: Sequence[Outlook]) -> list[Plan]:
        """One plan per request, for the step that is about to be made."""
        if not outlooks:
            return []
        histories = [self._history(outlook) for outlook in outlooks]
        rows = len(outlooks)
        plain_ms = self.costs.plain(rows)
        # Floored by the rate of plain decoding, which can always be had.
        rate = sum(h.tokens.value / h.cost.value for h in histories)
        worth = max(rate, float(rows)) / plain_ms
        able = [h for h, o in zip(histories, outlooks, strict=True) if self._can_draft(h, o)]
        sharers = len(able)
        plans = self._plans(outlooks, histories, worth, sharers)
        drafting = sum(h.option.kind == "draft" for h in able)
        if 0 < drafting < sharers:
            # A draft pass is shared by fewer than was thought: see who still wants it.
            plans = self._plans(outlooks, histories, worth, drafting)
        for history, outlook in zip(histories, outlooks, strict=True):
            if outlook.budget > 0 and history.option.kind != "draft":
                history.schedule.wait()
        if "draft" in self._kinds:
            self._probe(outlooks, histories, plans, worth, plain_ms)
        return plans

    def _plans(
        self,
        outlooks: Sequence[Outlook],
        histories: Sequence[History],
        worth: float,
        sharers: int,
    ) -> list[Plan]:
        rows = len(outlooks)
        around = self.costs.other(True) - self.costs.other(False)
        step = self.costs.draft(1, sharers) / sharers if sharers else 0.0
        # The others' tokens as in the last round: what one more costs depends on how wide the pass is.
        width = rows + sum(h.option.drafted for h in histories)
        plans = []
        for outlook, history in zip(outlooks, histories, strict=True):
            width -= history.option.drafted
            verify = self.costs.widening(int(width), max(self._max_tokens, _SHORTEST_TABLE))
            prices = Prices(worth, step, verify, max(around, 0.0))
            history.option = self._choose(outlook, history, prices)
            width += history.option.drafted
            plans.append(self._as_plan(history, prices))
        return plans

    def _choose(self, outlook: Outlook, history: History, prices: Prices) -> Option:
        """The option with the greatest gain."""
        cap = self._cap(outlook)
        best = Option("off", 0, 0.0, 0.0, 0.0)
        if cap < 1:
            return best
        if "ngram" in self._kinds and outlook.lookup > 0:
            found = min(cap, outlook.lookup)
            best = lookup_option(history.lookup, outlook.match, found, prices)
        history.given_up = True
        if self._can_draft(history, outlook) and self._account.affords():
            drafted = draft_option(
                history.draft,
                cap,
                prices,
                free=self._interactive,
                extra_ms=self._reading(outlook, history),
            )
            history.given_up = drafted.gain <= 0.0
            if drafted.gain > best.gain:
                best = drafted
        return best

    def _as_plan(self, history: History, prices: Prices) -> Plan:
        option = history.option
        go_on = None
        if option.kind == "draft" and self._interactive and option.tokens > 1:
            go_on = history.draft.confidence(prices.threshold())
        return Plan(option.kind, option.tokens, go_on)

    def _cap(self, outlook: Outlook) -> int:
        cap = min(outlook.budget, self._max_tokens)
        if outlook.phrase_left is not None:
            # The target's own token comes on top; what lies beyond the phrase is worth nothing yet.
            cap = min(cap, outlook.phrase_left - 1)
        return cap

    def _can_draft(self, history: History, outlook: Outlook) -> bool:
        return "draft" in self._kinds and outlook.budget > 0 and not history.mute

    def _reading(self, outlook: Outlook, history: History) -> float:
        """One round's share of what the draft has to read before it can begin, ms."""
        if outlook.behind <= 0:
            return 0.0
        ahead = min(self._reply.value, outlook.budget + 1.0)
        if outlook.phrase_left is not None:
            ahead = min(ahead, float(outlook.phrase_left))
        rounds = max(1.0, ahead / history.tokens.value)
        return self.costs.read(outlook.behind) / rounds

    def _probe(
        self,
        outlooks: Sequence[Outlook],
        histories: Sequence[History],
        plans: list[Plan],
        worth: float,
        plain_ms: float,
    ) -> None:
        """Let the draft have a short try where it is not the choice, once in a while."""
        for index, (outlook, history) in enumerate(zip(outlooks, histories, strict=True)):
            history.probing = False
            cap = self._cap(outlook)
            if plans[index].proposer == "draft" or cap < 1 or not self._can_draft(history, outlook):
                continue
            step_ms = self.costs.draft(1, len(outlooks)) / len(outlooks)
            verify = self.costs.widening(len(outlooks), max(self._max_tokens, _SHORTEST_TABLE))
            prices = Prices(worth, step_ms, verify, 0.0)
            count = min(cap, 2 if step_ms < 0.2 * plain_ms else 1)
            ms = count * step_ms + verify[count] + self.costs.read(outlook.behind)
            if not history.schedule.due(history.given_up, history.option.gain, ms / plain_ms):
                continue
            hopeless = conceivable(cap, prices) <= history.option.gain
            if hopeless and not history.schedule.long_due():
                continue
            if self._account.affords_try(ms / plain_ms):
                history.probing = True
                history.option = Option("draft", count, 0.0, history.draft.first(), count)
                plans[index] = Plan("draft", count)

    # After a step.

    def observe(self, times: RoundTimes, outcomes: Sequence[Outcome]) -> None:
        """Learn from the step that was made of the latest plans."""
        rows = len(outcomes)
        if not rows:
            return
        drafting = sum(o.plan.proposer == "draft" and o.drafted > 0 for o in outcomes)
        proposed = sum(o.drafted for o in outcomes)
        costs = self.costs
        costs.observe(times, drafting, proposed > 0)
        plain_ms = costs.plain(rows)
        ms = costs.draft(times.draft_forwards if drafting else 0, max(drafting, 1))
        ms += costs.verify(rows + proposed, rows) + rows * costs.other(proposed > 0)
        cost = ms / plain_ms
        owed = 0.0
        for outcome in outcomes:
            history = self._histories.get(outcome.id)
            if history is None:
                continue
            read_ms = costs.read(history.behind) if outcome.plan.proposer == "draft" else 0.0
            history.observe(outcome)
            owed += history.repay((outcome.accepted + 1 - cost) / rows, read_ms / plain_ms)
            if history.able:
                history.learn_rate(outcome.accepted + 1.0, cost)
                self._tokens.learn(outcome.accepted + 1.0)
                self._cost.learn(cost)
                for digest in (history.digest, self._digest):
                    digest.learn(outcome, cost, rows, history.probing)
        tokens = (sum(o.accepted for o in outcomes) + rows) / rows
        self._account.enter(cost + owed - tokens if drafting else 0.0)

    def forget(self, request_id: int) -> None:
        """The request is over. What it taught about all requests stays. Idempotent."""
        history = self._histories.pop(request_id, None)
        if history is not None and history.committed:
            self._reply.learn(float(history.committed))
            self._account.enter(history.debt)
            if history.drafted:
                history.draft.close()

    def explain(self, request_id: int | None = None) -> Explanation:
        """Why it does what it does, for one request or for all of late."""
        history = self._histories.get(request_id) if request_id is not None else None
        digest = history.digest if history is not None else self._digest
        return explain(digest, self.costs, self._kinds)

    def _history(self, outlook: Outlook) -> History:
        history = self._histories.get(outlook.id)
        if history is None:
            history = History(self._common[outlook.greedy], self._tokens, self._cost)
            self._histories[outlook.id] = history
        history.behind = outlook.behind
        history.able = self._cap(outlook) > 0
        return history
