"""Estimates of acceptance by position, and when a chain should end for them: optimal stopping."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from specstream.drafting.policy.records import Candidate, Offer, RoundOutcome
from specstream.model.tokens.spelling import StopRule

__all__ = ["Average", "CandidateAcceptance", "ChainStop", "Lockstep", "RequestAcceptance", "stop_of"]

_FIRM = 10.0  # expected hits by which a request's first trials are damped
_FORGETS = 0.05  # share of a request's trials that is forgotten with each new one
_BROKEN = 0.0002  # probability of a run of misses at which a candidate is as likely useless as not
_FRESH = 0.004  # what a new request begins with: useless with a probability of 5 %
_SUREST = 0.99  # highest chance that a token is given
_LEAST = 0.03  # a token less likely to be accepted never pays for its part of a target pass
_MEMORY = 200.0  # trials

_LONGEST = 16  # rounds between two tries of a candidate that was not chosen, at most
_SILENCE = 3  # planned rounds without a proposal until a draft counts as mute
_CATCHING_UP = 64  # unread tokens from which on a round without a proposal is no sign of being mute

# Edges and centres of the confidence buckets: the draft's own probability of its token.
_EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
_MIDDLES = (0.06, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.93, 0.97, 0.99, 0.998)

# Prior acceptance by position, for drafts without evidence classes.
_DRAFT_PRIORS = (0.6, 0.67)
_PRIOR = 6.0  # weight of a prior rate, in trials


class Average:
    """Running mean that turns into an exponential moving average after ``memory`` values.

    Starts at ``prior``, which counts as ``weight`` values.
    """

    __slots__ = ("_memory", "_weight", "value")

    def __init__(self, prior: float, weight: float, memory: float) -> None:
        self.value, self._weight, self._memory = prior, weight, memory

    def learn(self, value: float) -> None:
        """Count one value."""
        self._weight = min(self._weight + 1.0, self._memory)
        self.value += (value - self.value) / self._weight


class CandidateAcceptance:
    """Acceptance of one candidate over all greedy requests, or over all sampled ones.

    A token counts as a trial only if all tokens before it were accepted.

    Attributes:
        chances: Acceptance rate by evidence class; by position for a draft without evidence classes.
        of_confidence: Acceptance rate by bucket of the draft's own probability of the token.
        more: Mean number of tokens accepted after an accepted first one, over drafts that only their
            confidence ended.
        longer: Mean number of tokens drafted after the first one, over the same drafts.
    """

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        priors = list(candidate.priors or _DRAFT_PRIORS)
        for index, told in enumerate(candidate.acceptance[: min(2, len(priors))]):
            # A low measured rate of second tokens is not used: none would ever be drafted, and the
            # estimate never corrected.
            priors[index] = max(told, priors[index]) if index else told
        self.chances = [Average(p, _PRIOR, _MEMORY) for p in priors]
        self.of_confidence = [Average(0.2 + 0.785 * q, _PRIOR, _MEMORY) for q in _MIDDLES]
        self.more, self.longer = Average(1.4, 3.0, 100.0), Average(2.0, 3.0, 100.0)


class RequestAcceptance:
    """Acceptance of one candidate for one request: the common rates times how it has done here.

    The factor is the number of hits over the number that the common rates expected, over the latest
    trials, times the probability that the candidate is not useless at present, judged by the latest
    misses in a row: a few misses where hits were likely bring it near 0, one hit brings it back.

    Attributes:
        common: The estimate over all requests.
        factor: What the common rates are multiplied by.
        idle: Rounds since the candidate proposed.
        interval: Idle rounds after which it is tried; doubles with each try that fails.
    """

    __slots__ = ("_expected", "_hits", "_run", "_silent", "common", "factor", "idle", "interval")

    def __init__(self, common: CandidateAcceptance) -> None:
        self.common = common
        self._hits = self._expected = _FIRM
        self._run = _FRESH  # likelihood of the latest misses in a row if the candidate is of use
        self.factor = self._run / (self._run + _BROKEN)
        self.idle = self._silent = 0
        # A candidate whose acceptance was measured by its trainer needs no early try.
        self.interval = _LONGEST // 2 if common.candidate.acceptance else 2

    @property
    def mute(self) -> bool:
        """Whether it no longer answers (its context is full, or its weights are damaged)."""
        return self._silent >= _SILENCE

    def survival(self, offer: Offer, count: int) -> list[float]:
        """Return the probabilities that the first 1, 2, ... ``count`` tokens are all accepted.

        The list ends early, but not before its first entry, where a probability is 0.03 or less.
        """
        chances, evidence = self.common.chances, offer.evidence
        made, reached = list[float](), 1.0
        for index in range(count):
            kind = evidence[index] if evidence else min(index, len(chances) - 1)
            reached *= min(chances[kind].value * self.factor, _SUREST)
            if index and reached <= _LEAST:
                break
            made.append(reached)
        return made

    def first(self, offer: Offer) -> float:
        """Return the probability that the first token of a proposal is accepted."""
        return self.survival(offer, 1)[0]

    def free(self, offer: Offer, most: int) -> tuple[float, float]:
        """Return the expected accepted and drafted tokens of a draft that its confidence ends.

        ``most`` is the largest number of tokens that it may draft.
        """
        more, longer = self.common.more.value, self.common.longer.value
        return self.first(offer) * (1.0 + min(more, most - 1)), 1.0 + min(longer, most - 1)

    def of_confidence(self) -> tuple[Sequence[float], list[float], float]:
        """Return the edges of the confidence buckets, their rates, and a bound of the next token's."""
        chances = [one.value for one in self.common.of_confidence]
        return _EDGES, chances, max(one.value for one in self.common.chances[:2])

    def observe(
        self,
        offer: Offer,
        accepted: int,
        count: int,
        confidences: Sequence[float] = (),
        *,
        free: bool = False,
    ) -> None:
        """Learn from a proposal: each accepted token is a hit, the first rejected one a miss.

        Args:
            offer: The offer that it was made from.
            accepted: Number of accepted tokens.
            count: Number of proposed tokens (a tree's levels).
            confidences: The draft's probability of each token; empty: unknown.
            free: Whether only the draft's confidence ended the draft.
        """
        common = self.common
        for index in range(min(accepted + 1, count)):
            kind = offer.evidence[index] if offer.evidence else min(index, len(common.chances) - 1)
            hit, chance = index < accepted, common.chances[kind]
            if self._run > _BROKEN:
                self._hits += hit - _FORGETS * (self._hits - _FIRM)
                self._expected += chance.value - _FORGETS * (self._expected - _FIRM)
            self._run = 1.0 if hit else self._run * (1.0 - chance.value)
            chance.learn(hit)
            if confidences:
                common.of_confidence[bisect_right(_EDGES, confidences[index])].learn(hit)
        self.factor = self._hits / self._expected * self._run / (self._run + _BROKEN)
        if free:
            common.longer.learn(count - 1.0)
            if accepted:
                common.more.learn(accepted - 1.0)

    def judge(self, outcome: RoundOutcome, offer: Offer, probing: bool, longest: int) -> None:
        """Learn from a round planned for the candidate.

        Args:
            outcome: The round.
            offer: The offer that it was planned from.
            probing: Whether the round was a try.
            longest: The policy's longest proposal, in tokens.
        """
        if outcome.drafted < 1:
            self._silent += offer.behind < _CATCHING_UP
            return
        self._silent = self.idle = 0
        levels = outcome.drafted if outcome.depth is None else outcome.depth
        # Drafts that the reply's end cut short would make all seem short.
        free = outcome.plan.go_on is not None and outcome.plan.num_tokens == longest
        self.observe(offer, outcome.accepted, levels, outcome.confidences, free=free)
        failed = probing and not outcome.accepted
        self.interval = min(2 * self.interval, _LONGEST) if failed else 2


_STAY = 0.5  # share of the other chains that are taken to join in a further draft pass


class Lockstep:
    """Requests that draft in lockstep, and the price of another token, in tokens.

    Args:
        pass_cost: Cost of a draft pass over one request.
        row_cost: Addition of each further request to the pass.
        wider: Entry k: cost of k tokens in the target pass, beyond the first of each request.
        chains: Number of requests that draft.
    """

    __slots__ = ("_row_cost", "_wider", "active", "depth", "pass_cost", "tokens")

    def __init__(self, pass_cost: float, row_cost: float, wider: Sequence[float], chains: int) -> None:
        self.pass_cost, self._row_cost, self._wider = pass_cost, row_cost, wider
        self.depth = 1  # draft passes that are made in any case
        self.active = chains  # chains that have not stopped yet
        self.tokens = 0  # tokens drafted beyond the first of each chain

    def price(self, depth: int, ahead: int = 0) -> float:
        """Return the price of the token ``ahead`` places after a chain's next, from pass ``depth``."""
        at = self.tokens + ahead
        ms = self._row_cost + self._wider[at + 1] - self._wider[at]
        if self.depth < depth:
            ms += self.pass_cost / (1.0 + _STAY * (self.active - 1))
        return ms


class ChainStop:
    """The stopping rule of one request's chain, called with the draft's probability of each token.

    The probability that the next token is accepted falls from token to token, so looking one token
    ahead is optimal: go on while the next token is worth more than its price. A further draft pass is
    shared with other chains; for a pass that is made in any case, only the row is paid.

    Args:
        acceptance: The candidate's acceptance for the request.
        lockstep: The costs that the chains share.
        room: The most tokens of the chain. The rule is called after the last one, too.

    Attributes:
        lockstep: As given.
    """

    __slots__ = ("_ceiling", "_chances", "_depth", "_edges", "_room", "_survival", "lockstep")

    def __init__(self, acceptance: RequestAcceptance, lockstep: Lockstep, room: int) -> None:
        self._edges, self._chances, self._ceiling = acceptance.of_confidence()
        self.lockstep, self._room = lockstep, room
        self._survival, self._depth = min(acceptance.factor, 1.0), 1

    def __call__(self, confidence: float) -> bool:
        """Return whether to draft another token after one of that confidence."""
        lockstep, chance = self.lockstep, self._chances[bisect_right(self._edges, confidence)]
        self._depth += 1
        self._survival *= chance
        # The next token's confidence is unknown: its chance is taken to be this token's, but not more
        # than that of second tokens in general.
        hope = self._survival * min(chance, self._ceiling)
        if self._depth > self._room or hope <= lockstep.price(self._depth):
            lockstep.active -= 1
            return False
        lockstep.depth = self._depth
        lockstep.tokens += 1
        return True

    def stop(self) -> StopRule | None:
        """Return the rule as data; None where the answers depend on other chains."""
        lockstep, room = self.lockstep, self._room - self._depth
        if lockstep.active != 1:
            return None
        prices = [lockstep.price(lockstep.depth + 1, ahead) for ahead in range(room)]
        return StopRule((), self._edges, self._chances, self._survival, self._ceiling, prices)


def stop_of(go_on: Callable[[float], bool]) -> StopRule | None:
    """Return the stopping rule as data; None if it has to be called token by token."""
    return go_on.stop() if isinstance(go_on, ChainStop) else None
