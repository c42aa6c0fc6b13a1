"""The adaptive proposer: chooses who drafts, and how many tokens, among all methods that were loaded."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import torch

from specstream.checks import first_line
from specstream.drafting.calibration import calibrate
from specstream.drafting.candidate import CandidateProposer, EngineParts, Rehearsed, Task, TaskProposal
from specstream.drafting.checking import Explanation
from specstream.drafting.optional import StateReader, States, StepTimes
from specstream.drafting.policy.costs import Costs
from specstream.drafting.policy.policy import Policy
from specstream.drafting.policy.records import (
    Candidate,
    Offer,
    Outlook,
    RoundOutcome,
    RoundPlan,
    RoundTimes,
)
from specstream.drafting.proposal import Capabilities, Proposal, SpecRequest, Verdict
from specstream.drafting.proposers import build_proposer
from specstream.errors import ModelUnsupported
from specstream.methods import (
    AutoProposerConfig,
    BlockProposerConfig,
    DraftProposerConfig,
    EagleProposerConfig,
    EarlyExitProposerConfig,
    LookaheadProposerConfig,
    MedusaProposerConfig,
    MtpProposerConfig,
    ProposerConfig,
    SuffixProposerConfig,
)
from specstream.model.kv import common_prefix
from specstream.model.runner import ModelRunner
from specstream.model.selfcheck import check_trees
from specstream.model.tree import Tree

__all__ = ["AutoProposer", "build"]

_STATES_EVERY = 4  # while no reader of hidden states pays, one of so many requests has states read


class _Round(NamedTuple):
    """The plan, the offers and the proposal of one request in one round."""

    plan: RoundPlan
    offers: Mapping[str, Offer]
    drafted: TaskProposal

    def outcome(self, request_id: int, verdict: Verdict) -> RoundOutcome:
        """Combine the round with its verdict, and compare offered tokens with the committed ones."""
        tokens = verdict.tokens
        compared = {
            name: (min(len(offer.ids), len(tokens)), common_prefix(offer.ids, tokens))
            for name, offer in self.offers.items()
            if offer.ids
        }
        proposal = self.drafted.proposal
        tree = Tree(proposal.parents) if proposal.parents else None
        return RoundOutcome(
            request_id,
            self.plan,
            proposal.length,
            verdict.accepted,
            self.drafted.confidences,
            compared,
            None if tree is None else 1 + max(tree.depths),
        )


class AutoProposer:
    """Proposers among which a `Policy` chooses.

    A choice is made before the tokens concerned are drawn, or else keeps them. So the output
    distribution is the target's whatever the policy decides.

    Args:
        policy: Plans each round.
        candidates: The proposers to choose among, the same as the policy's.
        now: Clock of the host, in seconds.

    Attributes:
        candidates: The proposers to choose among, by name.
        rounds: By request, what was planned and proposed in this step.
    """

    name = "auto"

    def __init__(
        self,
        policy: Policy,
        candidates: Sequence[CandidateProposer],
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._policy = policy
        self.candidates = {made.candidate.name: made for made in candidates}
        known = [made.capabilities for made in candidates]
        self.capabilities = Capabilities(
            hidden_states=tuple(sorted({depth for c in known for depth in c.hidden_states})),
            trees=any(c.trees for c in known),
            predictions=any(c.predictions for c in known),
        )
        layers = self.capabilities.hidden_states
        self._readers = [
            (made, None if wanted == layers else torch.tensor([layers.index(d) for d in wanted]))
            for made in candidates
            if (wanted := made.capabilities.hidden_states) and isinstance(made, StateReader)
        ]
        self._reading = {made.candidate.name for made, _ in self._readers}
        self._others = {n: made for n, made in self.candidates.items() if n not in self._reading}
        self._stateless: dict[int, bool] = {}  # by request: whether its hidden states are not read
        self._begun = 0  # number of requests so far
        self._now = now
        self._planning = self._learning = 0.0  # s: planning of this step, learning of the one before
        self.rounds: dict[int, _Round] = {}
        self._used: set[str] = set()  # candidates that drafted in this step
        # In a step that the load leaves without drafts: its requests, and whether each is greedy.
        self._plain: dict[int, bool] = {}
        self._asked = False  # whether `propose` was called since the last step's times
        self._outcomes: list[RoundOutcome] = []
        self._passes = self._read = 0
        self._over: list[int] = []  # requests that ended before their last round was learned from

    @property
    def costs(self) -> Costs:
        """The cost model as learned so far."""
        return self._policy.costs

    def candidate(self, name: str) -> Candidate | None:
        """Return the candidate of that name; None if there is none."""
        made = self.candidates.get(name)
        return None if made is None else made.candidate

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        """Propose for each request what the policy planned."""
        began = self._now()
        self._asked = True
        self.rounds, self._used, self._passes, self._read = {}, set(), 0, 0
        self._plain = {}
        if not self._policy.drafts(len(requests)):
            self._plain = {request.id: request.params.greedy for request in requests}
            self._planning = self._now() - began
            return [Proposal.empty()] * len(requests)
        pairs = zip(requests, budget, strict=True)
        outlooks = [self._outlook(request, most) for request, most in pairs]
        plans = self._policy.plan(outlooks)
        self._planning = self._now() - began
        tasks: dict[str, list[Task]] = {}
        for request, most, outlook, plan in zip(requests, budget, outlooks, plans, strict=True):
            if (name := plan.proposer) in self.candidates:
                count, offer = min(plan.num_tokens, most), outlook.offers[name]
                task = Task(request, count, offer, plan.go_on, plan.least)
                tasks.setdefault(name, []).append(task)
        drafted: dict[int, TaskProposal] = {}
        for name, each in tasks.items():
            self._used.add(name)
            made = self.candidates[name].draft(each)
            drafted.update(zip((task.request.id for task in each), made, strict=True))
            self._passes += max(one.passes for one in made)
            self._read += sum(one.read for one in made)
        nothing = TaskProposal(Proposal.empty())
        for request, plan, outlook in zip(requests, plans, outlooks, strict=True):
            found = drafted.get(request.id, nothing)
            self.rounds[request.id] = _Round(plan, outlook.offers, found)
        return [self.rounds[request.id].drafted.proposal for request in requests]

    def _outlook(self, request: SpecRequest, budget: int) -> Outlook:
        made = self.candidates if self.wants_states(request) else self._others
        offers = {name: one.offer(request, budget) for name, one in made.items()}
        return Outlook(request.id, request.params.greedy, budget, offers)

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        """Keep the verdicts until the step's times are known."""
        rounds, self.rounds = self.rounds, {}
        self._outcomes = [
            rounds[request.id].outcome(request.id, verdict)
            for request, verdict in zip(requests, verdicts, strict=True)
            if request.id in rounds
        ]
        for name in self._used:
            self.candidates[name].observe(requests, verdicts)

    def wants_states(self, request: SpecRequest) -> bool:
        """Return whether the request's hidden states are read.

        While hardly any proposal comes from candidates that read hidden states, only one request in four
        has them read: keeping states costs a small target some percent of each round.
        """
        stateless = self._stateless.get(request.id)
        if stateless is None:
            self._begun += 1
            spared = bool(self._reading) and self._begun % _STATES_EVERY != 0
            stateless = spared and self._reading <= self._policy.rare
            self._stateless[request.id] = stateless
        return not stateless

    def read(self, requests: Sequence[SpecRequest], states: Sequence[States]) -> None:
        """Give each candidate that drafts from hidden states those of the layers it asked for."""
        told = [(r, s) for r, s in zip(requests, states, strict=True) if self.wants_states(r)]
        if not told:  # memory ran out: no request is left in the pass
            return
        requests, states = zip(*told, strict=True)
        for made, wanted in self._readers:
            some = states
            if wanted is not None:
                wanted = wanted.to(states[0].states.device, non_blocking=True)
                some = tuple(States(s.start, s.states.index_select(1, wanted)) for s in states)
            made.read(requests, some)

    def clock(self, times: StepTimes) -> None:
        """Give the policy the step's times and outcomes.

        If ``times.rows`` is 0, the times are no sample of a round, and only acceptance is learned.
        """
        began = self._now()
        planning_ms, learning_ms = self._planning * 1e3, self._learning * 1e3
        drafting = any(self.candidates[n].candidate.passes != "none" for n in self._used)
        draft_ms = max(0.0, times.propose_ms - planning_ms) if drafting else 0.0
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
        outcomes, over, asked, plain = self._outcomes, self._over, self._asked, self._plain
        self._outcomes, self._over, self._asked, self._used = [], [], False, set()
        self._plain = {}
        self._passes = self._read = 0
        try:
            if plain:
                self._policy.observe_plain(measured, plain)
            # Proposals were asked for and there is no outcome: this step or one before it failed.
            elif outcomes or (not asked and 0 < times.rows == times.tokens):
                self._policy.observe(measured, outcomes)
        finally:
            for request_id in over:
                self._policy.forget(request_id)
            self._planning, self._learning = 0.0, self._now() - began

    def explain(self, request_id: int | None = None) -> Explanation:
        """Explain the policy's latest plans."""
        return self._policy.explain(request_id)

    def finish(self, request_id: int) -> None:
        """Forget the request as soon as its last round has been learned from."""
        self._stateless.pop(request_id, None)
        self.rounds.pop(request_id, None)
        if request_id in self._plain or any(one.id == request_id for one in self._outcomes):
            self._over.append(request_id)
        else:
            self._policy.forget(request_id)

    def release(self, slot: int) -> None:
        """Have all candidates drop their caches of the slot."""
        for made in self.candidates.values():
            made.release(slot)


_log = logging.getLogger("specstream.engine")

_MAX_DEPTH = 8  # levels of an EAGLE draft: deeper ones are seldom accepted


def build(config: AutoProposerConfig, parts: EngineParts) -> AutoProposer:
    """Build the adaptive proposer over lookup, the draft model if there is one, and every head."""
    every = [cast(CandidateProposer, build_proposer(one, parts)) for one in _configs(config, parts)]
    made = [one for one in every if _runs(one, parts.target)]
    passes = {one.candidate.name: one.rehearse for one in made if isinstance(one, Rehearsed)}
    costs = calibrate(parts.target, parts.draft, passes, parts.times)
    candidates = [one.candidate for one in made]
    told = [replace(one, acceptance=parts.acceptance.get(one.name, ())) for one in candidates]
    policy = Policy(told, costs, max_tokens=config.max_tokens)
    return AutoProposer(policy, made)


def _runs(proposer: CandidateProposer, target: ModelRunner) -> bool:
    """Whether a candidate works on this machine; one that doesn't is left out with a warning."""
    try:
        if isinstance(proposer, Rehearsed):
            proposer.rehearse()
        if proposer.capabilities.trees:
            check_trees(target)
    except (RuntimeError, ModelUnsupported) as error:
        name = proposer.candidate.name
        _log.warning("auto drafts without %s, which fails here: %s", name, first_line(error))
        return False
    return True


def _configs(config: AutoProposerConfig, parts: EngineParts) -> Iterator[ProposerConfig]:
    yield SuffixProposerConfig(
        num_tokens=config.max_tokens,
        min_match=config.min_match,
        store=config.store,
        store_tokens=config.store_tokens,
    )
    if "lookahead" in config.methods:
        yield LookaheadProposerConfig()
    if parts.draft is not None:
        yield DraftProposerConfig(window=config.window, vocabulary=config.vocabulary)
    heads: tuple[ProposerConfig, ...] = (  # a new method with a head gets one line here
        EagleProposerConfig(depth=min(config.max_tokens, _MAX_DEPTH), top_k=config.top_k),
        EarlyExitProposerConfig(),
        MedusaProposerConfig(),
        MtpProposerConfig(num_tokens=min(config.max_tokens, 4)),
        BlockProposerConfig(num_tokens=config.max_tokens),
    )
    yield from (one for one in heads if one.kind in parts.heads)
