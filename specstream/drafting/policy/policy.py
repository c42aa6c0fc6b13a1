"""The policy: plans each round from earlier ones, and says why. No torch, no clock.

It changes only the speed, never the output distribution: every proposal is verified.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from specstream.drafting.checking import Explanation
from specstream.drafting.policy.acceptance import Average, CandidateAcceptance, RequestAcceptance
from specstream.drafting.policy.choice import ChosenPlan, Step, Tries
from specstream.drafting.policy.costs import Costs, DraftCosts, Load
from specstream.drafting.policy.records import Candidate, Outlook, RoundOutcome, RoundPlan, RoundTimes

__all__ = ["Policy", "Round", "explain", "share"]

_SELDOM = 0.25  # share of rounds with a proposal below which the explanation is "not speculating"
_SLOW = 0.3  # a draft pass that costs more plain rounds is named as the reason first


class Round(NamedTuple):
    """Proposal, acceptance and cost of one request's round.

    Attributes:
        name: The candidate that proposed; "off": none.
        drafted: Number of proposed tokens.
        accepted: Number of accepted ones.
        cost: Duration in plain rounds.
        rows: Requests in the target pass.
        probing: Whether the proposal was a try.
    """

    name: str
    drafted: int
    accepted: int
    cost: float
    rows: int
    probing: bool


def share(rounds: Collection[Round], name: str) -> float:
    """Return the share of rounds in which a candidate proposed; 0 if there are none."""
    return sum(one.name == name for one in rounds) / max(len(rounds), 1)


def explain(rounds: Collection[Round], costs: Costs, candidates: Mapping[str, Candidate]) -> Explanation:
    """Explain the latest rounds in figures and words."""
    made = list(rounds) or [Round("off", 0, 0, 1.0, 1, False)]
    drafted, tau = fmean(one.drafted for one in made), 1.0 + fmean(one.accepted for one in made)
    cost, rows = fmean(one.cost for one in made), round(fmean(one.rows for one in made))
    shares = {name: share(made, name) for name in candidates}
    ranked = sorted(candidates, key=lambda name: -shares[name])
    speculating = sum(shares.values()) >= _SELDOM
    drafter = next((name for name in ranked if candidates[name].passes != "none"), "")
    judged = drafter if drafter and not speculating else next(iter(ranked), "")
    firsts = [one.accepted > 0 for one in made if one.name == judged]
    first, plain = fmean(firsts or [0.0]), costs.plain(rows)
    step = costs.draft(drafter).passes(1, rows) / plain if drafter else 0.0
    if not rounds:
        words = "no round yet that could speculate"
    elif speculating:
        active = [name for name in ranked if shares[name] > 0.1]
        who = " and ".join(f"{candidates[n].title} ({shares[n]:.0%} of rounds)" for n in active)
        words = (
            f"speculating with {who}, about {drafted:.1f} tokens a round: {first:.0%} of first tokens "
            f"stand, {tau:.1f} tokens for the time of {cost:.2f} plain rounds; predicted "
            f"{tau / cost:.2f}x"
        )
        words += f" with {rows} requests in each pass" if rows > 1 else ""
    elif drafter:
        title = candidates[drafter].title.removesuffix(" model")
        words = f"not speculating: {_reason(costs, rows, title, step, first)}"
    else:
        titles = " and ".join(candidate.title for candidate in candidates.values())
        why = f"{titles} finds too little" if titles else "nobody may propose"
        words = f"not speculating: {why}"
    return Explanation(
        words=f"{words}; probing" if made[-1].probing and not speculating else words,
        kind=judged if speculating else "off",
        num_tokens=drafted,
        acceptance=first,
        tau=tau,
        draft_cost=step,
        verify_cost=costs.verify(rows * (1.0 + drafted), rows) / plain,
        overhead=rows * costs.other(drafted > 0.0) / plain,
        predicted_speedup=tau / cost,
        ceiling=(1.0 + drafted) / cost,
    )


def _reason(costs: Costs, rows: int, title: str, step: float, first: float) -> str:
    """Return why a draft does not pay.

    Args:
        costs: The cost model.
        rows: Requests in a target pass.
        title: The draft's name.
        step: Cost of one of its passes, in plain rounds.
        first: Acceptance rate of its first tokens.
    """
    plain = costs.plain(rows)
    # The share of a step that one drafted token per request adds is the acceptance rate that is needed.
    widening = costs.widening(rows, (rows,))[0] / plain
    needed = step + widening + rows * (costs.other(True) - costs.other(False)) / plain
    if rows > 1 and widening > max(step, _SLOW):
        return (
            f"the batch is saturated (one token more for each of {rows} requests makes a step "
            f"{widening:.0%} longer)"
        )
    if step > _SLOW or needed >= 1.0:
        more = f"; acceptance would have to be over {needed:.0%}" if needed < 1.0 else ""
        return f"{title} is too slow (a draft pass costs {step:.0%} of a plain round{more})"
    if first < needed:
        needs = f"{needed:.0%} are needed"
        return f"acceptance is too low ({first:.0%} of the draft's first tokens; {needs})"
    return "proposals seldom pay"


_STALL = 2.0  # times its estimate: a step that took longer is counted as this long
_MANY, _RARE = 64, 0.03  # a candidate is rare with less than this share of at least so many rounds


class _Request:
    """The policy's state of one request.

    Attributes:
        tracks: How each candidate has done, by name.
        tokens: Committed tokens of a round.
        cost: Duration of a round, in plain rounds.
        rounds: The latest rounds.
        committed: Length of the reply so far.
        place: Its part in the step under way.
    """

    def __init__(self, common: Sequence[CandidateAcceptance], tokens: float, cost: float) -> None:
        self.tracks = {one.candidate.name: RequestAcceptance(one) for one in common}
        self.tokens, self.cost = Average(tokens, 4.0, 16.0), Average(cost, 4.0, 16.0)
        self.rounds = deque[Round](maxlen=64)
        self.committed = 0
        self.place: ChosenPlan


class Policy:
    """Chooses candidate and length by expected tokens per millisecond.

    Call `plan` before a step and `observe` after it.

    Args:
        candidates: Who may propose; none: plain decoding.
        costs: The cost model, seeded by a calibration.
        max_tokens: The longest proposal.

    Attributes:
        costs: As given; it learns from each step.
        requests: By request, what was learned of it; it is forgotten when the request ends.
    """

    def __init__(self, candidates: Sequence[Candidate], costs: Costs, *, max_tokens: int) -> None:
        if max_tokens < 1:
            raise ValueError("max_tokens must be at least 1")
        self.costs, self._max_tokens = costs, max_tokens
        # Lookups first: a draft is chosen only where it beats them.
        candidates = sorted(candidates, key=lambda c: c.passes != "none")
        self._candidates = {c.name: c for c in candidates}
        self._drafts = {c.name for c in candidates if c.passes != "none"}
        # A lookup costs nothing.
        costs.drafts |= {c.name: DraftCosts(0.0) for c in candidates if c.passes == "none"}
        self._common = {greedy: [CandidateAcceptance(c) for c in candidates] for greedy in (True, False)}
        self.requests: dict[int, _Request] = {}
        self._tries = Tries()
        self._load = Load()
        # Per round: committed tokens, and cost in plain rounds.
        self._tokens, self._cost = Average(1.5, 2.0, 60.0), Average(1.1, 2.0, 60.0)
        self._reply = Average(48.0, 1.0, 30.0)  # length of a reply in tokens
        self._rounds = deque[Round](maxlen=256)

    @property
    def rare(self) -> set[str]:
        """Candidates that made less than 3 % of the latest proposals; none before 64 rounds."""
        if len(self._rounds) < _MANY:
            return set()
        return {name for name in self._candidates if share(self._rounds, name) < _RARE}

    def drafts(self, requests: int) -> bool:
        """Whether the next step of so many requests may have drafts; if not, it needs no plan.

        `observe_plain` then takes the place of `observe`.
        """
        return self._load.drafts(requests)

    def plan(self, outlooks: Sequence[Outlook]) -> list[RoundPlan]:
        """Return one plan for each request of the next step."""
        if not outlooks:
            return []
        requests = [self._request(outlook) for outlook in outlooks]
        # Plain decoding is always possible, so the rate is at least that of plain decoding.
        rate = sum(request.tokens.value / request.cost.value for request in requests)
        worth = max(rate, float(len(requests))) / self.costs.plain(len(requests))
        places = [request.place for request in requests]
        step = Step(places, self._candidates.values(), self.costs, worth)
        step.choose()
        step.probe(self._tries)
        return step.plans()

    def _request(self, outlook: Outlook) -> _Request:
        """Return the state of a request whose next round begins."""
        request = self._known(outlook.id, outlook.greedy)
        most = min(outlook.budget, self._max_tokens)
        ahead = min(outlook.budget + 1.0, self._reply.value)
        rounds = max(1.0, ahead / request.tokens.value)
        request.place = ChosenPlan(outlook, most, request.tracks, rounds)
        for track in request.tracks.values():
            track.idle += most > 0
        return request

    def _known(self, request_id: int, greedy: bool) -> _Request:
        request = self.requests.get(request_id)
        if request is None:
            request = _Request(self._common[greedy], self._tokens.value, self._cost.value)
            self.requests[request_id] = request
        return request

    def observe_plain(self, times: RoundTimes, requests: Mapping[int, bool]) -> None:
        """Learn from a step without drafts; ``requests``: by their ids, whether they are greedy.

        What was learned of acceptance and of rates stays for a step that may have drafts.
        """
        rows = len(requests)
        self.costs.observe(times, [0] * rows)
        plain_ms = told = self.costs.plain(rows)
        if times.rows == rows:
            took = times.draft_ms + times.verify_ms + times.other_ms + times.plan_ms
            self._load.observe(rows, rows, took, plain_ms)
            told = min(took, _STALL * plain_ms) * self._load.plain(rows)
        made = Round("off", 0, 0, told / plain_ms, rows, False)
        for request_id, greedy in requests.items():
            request = self._known(request_id, greedy)
            request.committed += 1
            request.rounds.append(made)
            self._rounds.append(made)
        self._tries.enter()

    def observe(self, times: RoundTimes, outcomes: Sequence[RoundOutcome]) -> None:
        """Learn from the step that followed the latest plans.

        ``outcomes`` is empty after a step of requests that don't speculate: only costs are learned.
        """
        rows, proposals = len(outcomes), [o.drafted for o in outcomes]
        asked = [o for o in outcomes if o.plan.proposer in self._drafts]
        drafting, names = sum(o.drafted > 0 for o in asked), {o.plan.proposer for o in asked}
        # The step's draft time can be attributed only if a single candidate drafted.
        drafter = names.pop() if len(names) == 1 else ""
        self.costs.observe(times, proposals, drafter, drafting)
        if not outcomes:
            return
        plain_ms = self.costs.plain(rows)
        took = None
        if times.rows == rows:
            took = times.draft_ms + times.verify_ms + times.other_ms + times.plan_ms
            self._load.observe(rows, sum(o.accepted + 1 for o in outcomes), took, plain_ms)
        ms = self.costs.verify(self.costs.tokens(rows, proposals), rows)
        ms += rows * self.costs.other(any(proposals))
        ms += min(times.plan_ms, plain_ms)
        reading = 0.0  # happens once a reply, so it is left out of a round's usual cost
        if drafter:
            draft = self.costs.draft(drafter)
            ms += draft.passes(times.draft_forwards if drafting else 0, max(drafting, 1))
            reading = times.draft_read * draft.read / plain_ms
        elif drafting:
            ms += times.draft_ms
        # Where requests share a pass, what is reported was measured, but for stalls: there the errors of
        # the estimates add up. The choice of drafts goes by estimates, which a slow step doesn't move.
        told = ms + reading * plain_ms
        if took and rows > 1:
            told = min(took, _STALL * told) * self._load.plain(rows)
        for one in outcomes:
            self._observe_one(one, ms / plain_ms, told / plain_ms, rows)
        self._tries.enter()

    def _observe_one(self, outcome: RoundOutcome, cost: float, told: float, rows: int) -> None:
        """Learn from one request's round; ``cost`` and ``told`` (for reports) are in plain rounds."""
        request = self.requests.get(outcome.id)
        if request is None:
            return
        place, name, offers = request.place, outcome.plan.proposer, request.place.outlook.offers
        request.committed += outcome.accepted + 1
        for compared, (count, agreed) in outcome.compared.items():
            if count and compared in request.tracks:
                request.tracks[compared].observe(offers[compared], agreed, count)
        if name in request.tracks and name not in outcome.compared:
            request.tracks[name].judge(outcome, offers[name], place.probing, self._max_tokens)
        if place.most < 1:
            return
        # A lone request's rounds of lookup are left out of its rate: in a repeated passage tokens are
        # cheap, and drafts elsewhere would be undervalued. In a batch, all requests share the time.
        if rows > 1 or name not in self._candidates or name in self._drafts:
            for tokens in (request.tokens, self._tokens):
                tokens.learn(outcome.accepted + 1.0)
            for average in (request.cost, self._cost):
                average.learn(cost)
        who = name if outcome.drafted else "off"
        made = Round(who, outcome.drafted, outcome.accepted, told, rows, place.probing)
        for rounds in (request.rounds, self._rounds):
            rounds.append(made)

    def forget(self, request_id: int) -> None:
        """Drop a request that has ended; estimates over all requests stay. Idempotent."""
        request = self.requests.pop(request_id, None)
        if request is not None and request.committed:
            self._reply.learn(request.committed)

    def explain(self, request_id: int | None = None) -> Explanation:
        """Explain the latest plans in figures and words: of one request, or of all."""
        request = self.requests.get(request_id) if request_id is not None else None
        rounds = self._rounds if request is None else request.rounds
        return explain(rounds, self.costs, self._candidates)
