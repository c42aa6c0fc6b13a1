"""The policy: plans each round from the costs and acceptance of earlier rounds. No torch, no clock.

It changes only the speed, never the output distribution: every proposal is verified.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from specstream.speculation.explanation import Explanation
from specstream.speculation.policy.acceptance import Acceptance, Average, RequestAcceptance
from specstream.speculation.policy.choice import Place, Step, Tries
from specstream.speculation.policy.costs import Costs, DraftCosts
from specstream.speculation.policy.explain import Round, explain, share
from specstream.speculation.policy.load import Load
from specstream.speculation.policy.records import Candidate, Outcome, Outlook, Plan, RoundTimes

__all__ = ["Policy"]

_OFF = Plan("off", 0)
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

    def __init__(self, common: Sequence[Acceptance], tokens: float, cost: float) -> None:
        self.tracks = {one.candidate.name: RequestAcceptance(one) for one in common}
        self.tokens, self.cost = Average(tokens, 4.0, 16.0), Average(cost, 4.0, 16.0)
        self.rounds = deque[Round](maxlen=64)
        self.committed = 0
        self.place: Place


class Policy:
    """Chooses candidate and length by expected tokens per millisecond.

    Call `plan` before a step and `observe` after it.

    Args:
        candidates: Who may propose; none: plain decoding.
        costs: The cost model, seeded by a calibration.
        max_tokens: The longest proposal.
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
        self._common = {greedy: [Acceptance(c) for c in candidates] for greedy in (True, False)}
        self._requests: dict[int, _Request] = {}
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

    def plan(self, outlooks: Sequence[Outlook]) -> list[Plan]:
        """Return one plan for each request of the next step."""
        if not outlooks:
            return []
        requests = [self._request(outlook) for outlook in outlooks]
        if not self._load.drafts(len(requests)):
            return [_OFF] * len(requests)
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
        request = self._requests.get(outlook.id)
        if request is None:
            common = self._common[outlook.greedy]
            request = _Request(common, self._tokens.value, self._cost.value)
            self._requests[outlook.id] = request
        most = min(outlook.budget, self._max_tokens)
        ahead = min(outlook.budget + 1.0, self._reply.value)
        if outlook.phrase_left is not None:
            # The target adds a token of its own; tokens beyond the phrase have no value yet.
            most = min(most, outlook.phrase_left - 1)
            ahead = min(ahead, outlook.phrase_left)
        rounds = max(1.0, ahead / request.tokens.value)
        request.place = Place(outlook, most, request.tracks, rounds)
        for track in request.tracks.values():
            track.idle += most > 0
        return request

    def observe(self, times: RoundTimes, outcomes: Sequence[Outcome]) -> None:
        """Learn from the step that followed the latest plans.

        ``outcomes`` is empty after a step of requests that don't speculate: only costs are learned.
        """
        rows, proposed = len(outcomes), sum(o.drafted for o in outcomes)
        asked = [o for o in outcomes if o.plan.proposer in self._drafts]
        drafting, names = sum(o.drafted > 0 for o in asked), {o.plan.proposer for o in asked}
        # The step's draft time can be attributed only if a single candidate drafted.
        drafter = names.pop() if len(names) == 1 else ""
        self.costs.observe(times, proposed, drafter, drafting)
        if not outcomes:
            return
        plain_ms = self.costs.plain(rows)
        took = None
        if times.rows == rows:
            took = times.draft_ms + times.verify_ms + times.other_ms + times.plan_ms
            self._load.observe(rows, sum(o.accepted + 1 for o in outcomes), took, plain_ms)
        ms = self.costs.verify(rows + proposed, rows) + rows * self.costs.other(proposed > 0)
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

    def _observe_one(self, outcome: Outcome, cost: float, told: float, rows: int) -> None:
        """Learn from one request's round; ``cost`` and ``told`` (for reports) are in plain rounds."""
        request = self._requests.get(outcome.id)
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
        request = self._requests.pop(request_id, None)
        if request is not None and request.committed:
            self._reply.learn(request.committed)

    def explain(self, request_id: int | None = None) -> Explanation:
        """Explain the latest plans in figures and words: of one request, or of all."""
        request = self._requests.get(request_id) if request_id is not None else None
        rounds = self._rounds if request is None else request.rounds
        return explain(rounds, self.costs, self._candidates)
