"""Chooses each round, per request: the draft model, prompt lookup, or nobody; and how many tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from specstream.speculation.policy.controller import Controller
from specstream.speculation.policy.records import Explanation, Outcome, Outlook, Plan, RoundTimes
from specstream.speculation.proposal import Capabilities, Proposal, SpecRequest, StepTimes, Verdict
from specstream.speculation.proposers.draft_model import DraftModelProposer
from specstream.speculation.proposers.drafting import Drafting
from specstream.speculation.proposers.ngram import Lookup, NgramProposer

__all__ = ["AutoProposer"]


class _Round(NamedTuple):
    """What was planned and proposed for one request."""

    plan: Plan
    lookup: Lookup
    drafted: int
    confidences: tuple[float, ...] = ()

    def outcome(self, request_id: int, verdict: Verdict) -> Outcome:
        """What became of it. A lookup that was not used is compared all the same."""
        (offer, match, support), tokens = self.lookup, verdict.tokens
        offered, agreed = min(len(offer), len(tokens)), 0
        while agreed < offered and offer[agreed] == tokens[agreed]:
            agreed += 1
        return Outcome(
            request_id,
            self.plan,
            self.drafted,
            verdict.accepted,
            match,
            self.confidences,
            offered,
            agreed,
            support,
        )


class AutoProposer:
    """A draft model and prompt lookup under a `Controller`.

    Every choice is made before the tokens that it is about are drawn, or keeps them; so the target's
    distribution is kept whatever the controller does.

    Args:
        controller: Decides.
        lookup: Looks up.
        draft: Drafts; None: there is no draft model.
        now: The host's clock, in seconds.
    """

    name = "auto"
    capabilities = Capabilities(own_cache=True)

    def __init__(
        self,
        controller: Controller,
        lookup: NgramProposer,
        draft: DraftModelProposer | None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._controller = controller
        self._lookup = lookup
        self._draft = draft
        self._now = now
        self._nothing = Proposal.empty(lookup.device)
        self._planning = self._learning = 0.0  # s, of this step, and of the one before
        self._rounds: dict[int, _Round] = {}
        self._drafting = False
        self._asked = False  # for proposals, since the last step was told of
        self._passes = 0
        self._read = 0
        self._outcomes: list[Outcome] = []
        self._over: list[int] = []  # requests that have ended, whose last round is not yet told

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        """What the controller planned for each."""
        began = self._now()
        self._asked = True
        self._rounds, self._drafting, self._passes, self._read = {}, False, 0, 0
        lookups = [self._lookup.look_up(r, b) for r, b in zip(requests, budget, strict=True)]
        outlooks = [self._outlook(*item) for item in zip(requests, budget, lookups, strict=True)]
        plans = self._controller.plan(outlooks)
        self._planning = self._now() - began
        chains = {
            r.id: Drafting(r, min(p.num_tokens, b), p.go_on)
            for r, p, b in zip(requests, plans, budget, strict=True)
            if p.proposer == "draft"
        }
        if chains and self._draft is not None:
            self._drafting = True
            self._passes = self._draft.write(list(chains.values()))
            self._read = sum(chain.read for chain in chains.values())
        rounds: dict[int, _Round] = {}
        proposals: list[Proposal] = []
        for request, plan, lookup in zip(requests, plans, lookups, strict=True):
            confidences: tuple[float, ...] = ()
            proposal = self._nothing
            if plan.proposer == "draft":
                chain = chains[request.id]
                proposal = chain.proposal(self._lookup.device)
                confidences = tuple(chain.confidences)
            elif plan.proposer == "ngram":
                proposal = self._lookup.proposal(lookup.tokens[: plan.num_tokens])
            rounds[request.id] = _Round(plan, lookup, proposal.length, confidences)
            proposals.append(proposal)
        self._rounds = rounds
        return proposals

    def _outlook(self, request: SpecRequest, budget: int, lookup: Lookup) -> Outlook:
        return Outlook(
            request.id,
            request.params.greedy,
            budget,
            len(lookup.tokens),
            lookup.match,
            self._draft.behind(request) if self._draft is not None else 0,
            request.phrase_left,
            lookup.support,
        )

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        """Remember what became of the proposals until the step's times are known."""
        rounds, self._rounds = self._rounds, {}
        self._outcomes = [
            rounds[request.id].outcome(request.id, verdict)
            for request, verdict in zip(requests, verdicts, strict=True)
            if request.id in rounds
        ]
        if self._draft is not None and self._drafting:
            self._draft.observe(requests, verdicts)

    def clock(self, times: StepTimes) -> None:
        """Tell the controller what the step took and brought.

        Without rows the times say nothing, and only what became of the proposals is learned.
        """
        began = self._now()
        planning_ms, learning_ms = self._planning * 1e3, self._learning * 1e3
        draft_ms = max(0.0, times.propose_ms - planning_ms) if self._drafting else 0.0
        measured = RoundTimes(
            draft_ms=draft_ms,
            draft_forwards=self._passes,
            draft_read=self._read,
            verify_ms=times.verify_ms,
            rows=times.rows,
            tokens=times.tokens,
            other_ms=max(0.0, times.total_ms - planning_ms - draft_ms - times.verify_ms),
            plan_ms=planning_ms + learning_ms,
        )
        outcomes, over, asked = self._outcomes, self._over, self._asked
        self._outcomes, self._over, self._asked = [], [], False
        self._drafting, self._passes, self._read = False, 0, 0
        try:
            if outcomes:
                self._controller.observe(measured, outcomes)
            elif not asked and 0 < times.rows == times.tokens:
                # Asked and yet no outcome: something broke, in this step or in one before it.
                self._controller.observe_aside(measured)
        finally:
            for request_id in over:
                self._controller.forget(request_id)
            self._planning, self._learning = 0.0, self._now() - began

    def explain(self, request_id: int | None = None) -> Explanation:
        """The controller's reasons."""
        return self._controller.explain(request_id)

    def finish(self, request_id: int) -> None:
        """What was learned of the request alone is forgotten, once its last round is learned from."""
        self._rounds.pop(request_id, None)
        if any(outcome.id == request_id for outcome in self._outcomes):
            self._over.append(request_id)
        else:
            self._controller.forget(request_id)

    def release(self, slot: int) -> None:
        """Drop the slot's draft cache and index."""
        self._lookup.release(slot)
        if self._draft is not None:
            self._draft.release(slot)
