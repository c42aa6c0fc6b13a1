"""How likely the target is to accept what a candidate proposes: over all requests, and for each.

Estimators forget slowly, need no clock, and are deterministic.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from specstream.speculation.policy.records import Candidate, Offer

__all__ = ["Acceptance", "Average", "Chance", "RequestAcceptance"]

_FURTHEST = 4.5  # log-odds (a chance of 0.989) beyond which estimates are not told apart
_SPREAD, _FIRMEST = 0.7, 6.0  # of a request's shift: prior deviation, and largest precision
_HIT_IF_BROKEN, _BREAKS = 0.02, 0.002  # chance of a hit while broken; of breaking, per trial
_MENDS, _MENDS_COMPARED = 0.02, 0.004  # of working again; where every round is a trial, of lookups

# Edges of the confidence buckets: the draft's probability of its token.
_EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
_MIDDLES = (0.06, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.93, 0.97, 0.99, 0.998)

_DRAFT_PRIORS = (0.6, 0.65, 0.7)  # by position, of a draft that gives no evidence
_TOLD = 6.0  # trials that a trainer's figure counts as


class Average:
    """A mean that starts at ``prior``, worth ``weight`` values, and fades after ``memory`` of them."""

    __slots__ = ("_memory", "_weight", "value")

    def __init__(self, prior: float, weight: float, memory: float) -> None:
        self.value, self._weight, self._memory = prior, weight, memory

    def learn(self, value: float) -> None:
        """Count one value."""
        self._weight = min(self._weight + 1.0, self._memory)
        self.value += (value - self.value) / self._weight


class Chance(Average):
    """The mean of hits and misses, also as log-odds."""

    __slots__ = ("log_odds",)

    def __init__(self, prior: float, weight: float = 3.0) -> None:
        super().__init__(prior, weight, 400.0)
        self.log_odds = _log_odds(prior)

    def learn(self, value: float) -> None:
        """Count a trial: 1 for a hit, else 0."""
        super().learn(value)
        self.log_odds = _log_odds(self.value)


def _log_odds(p: float) -> float:
    p = min(max(p, 1e-4), 1.0 - 1e-4)
    return math.log(p / (1.0 - p))


class Acceptance:
    """One candidate's acceptance over all requests that decode alike (greedily, or sampled).

    Only tokens whose predecessors were all accepted are trials.

    Attributes:
        chances: Acceptance by evidence class; of a draft that gives no evidence, by position.
        of_confidence: Acceptance by bucket of the token's own confidence.
        more: Tokens accepted beyond the first, if the first was and the draft was free to go on.
        longer: Tokens drafted beyond the first, if the draft was free to go on.
        doubt: `RequestAcceptance.doubt` at the end of a request.
    """

    def __init__(self, candidate: Candidate, greedy: bool) -> None:
        self.candidate = candidate
        told, priors = candidate.acceptance, candidate.priors or _DRAFT_PRIORS
        # Low figures of later positions aren't believed: they would forbid to ever draft two tokens.
        later = [max(pair) for pair in zip(priors[1:], told[1:], strict=False)]
        self.chances = [Chance(p) for p in (priors[0], *later, *priors[1 + len(later) :])]
        if told:
            self.chances[0] = Chance(told[0], _TOLD)
        # The target accepts a sampled token of low probability more often than the draft expects it.
        low, high = (0.15, 0.99) if greedy else (0.3, 0.98)
        self.of_confidence = [Chance(low + (high - low) * q) for q in _MIDDLES]
        self.more, self.longer = Average(1.4, 3.0, 100.0), Average(2.0, 3.0, 100.0)
        self.doubt = Average(0.03 if told else 0.1, 2.0, 5.0)


class RequestAcceptance:
    """One request's acceptance: all requests', shifted by what is known of this one.

    The shift, in log-odds, takes a Newton step on the log-likelihood per trial (a scalar extended
    Kalman filter). Its precision is bounded, so that changes of the text are followed.

    Attributes:
        common: All requests' acceptance.
        doubt: Probability that the candidate is useless at present, by a two-state hidden Markov
            model: a few misses where hits were likely make it certain, one hit dispels it. What was
            learned of the working state survives a broken spell.
    """

    __slots__ = ("_mends", "_precision", "_shift", "_tried", "common", "doubt")

    def __init__(self, common: Acceptance) -> None:
        self.common, self.doubt, self._tried = common, common.doubt.value, False
        self._shift, self._precision = 0.0, 1.0 / (_SPREAD * _SPREAD)
        self._mends = _MENDS_COMPARED if common.candidate.passes == "none" else _MENDS

    def survival(self, offer: Offer, count: int) -> list[float]:
        """Probability that token 1, 2, … ``count`` is accepted with all before it."""
        chances, evidence = self.common.chances, offer.evidence
        made, reached, last, chance = list[float](), 1.0 - self.doubt, -1, 0.0
        for index in range(count):
            kind = evidence[index] if evidence else min(index, len(chances) - 1)
            if kind != last:
                last, x = kind, chances[kind].log_odds + self._shift
                chance = 1.0 / (1.0 + math.exp(-min(max(x, -_FURTHEST), _FURTHEST)))
            reached *= chance
            made.append(reached)
        return made

    def free(self, offer: Offer, lengths: Sequence[int]) -> list[tuple[float, float]]:
        """Expected tokens that are accepted and drafted, by the length that ends a draft in any case."""
        (first,) = self.survival(offer, 1)
        more, longer = self.common.more.value, self.common.longer.value
        # Of geometric lengths that end at ``most`` in any case.
        share, length = more / (1.0 + more), longer / (1.0 + longer)
        first, longer = first * (1.0 + more), 1.0 + longer
        return [
            (first * (1.0 - share**most), min(longer * (1.0 - length**most), float(most)))
            for most in lengths
        ]

    def of_confidence(self) -> tuple[Sequence[float], list[float], float]:
        """Of a token by its confidence: edges of the buckets, a chance for each; of second tokens."""
        chances = [one.value for one in self.common.of_confidence]
        return _EDGES, chances, self.common.chances[1].value

    def observe(
        self,
        offer: Offer,
        accepted: int,
        count: int,
        confidences: Sequence[float] = (),
        *,
        free: bool = False,
    ) -> None:
        """Learn from a proposal: of its tokens the accepted ones and the first rejected.

        Args:
            offer: What it was made from.
            accepted: So many were.
            count: Tokens (of a tree: levels).
            confidences: The draft's probability of each; empty: unknown.
            free: Whether only the draft's confidence ended it.
        """
        common, self._tried = self.common, True
        for index in range(min(accepted + 1, count)):
            kind = offer.evidence[index] if offer.evidence else min(index, len(common.chances) - 1)
            hit = index < accepted
            if self._learn(common.chances[kind], hit) and confidences:
                common.of_confidence[bisect_right(_EDGES, confidences[index])].learn(hit)
        if free:
            common.longer.learn(count - 1.0)
            if accepted:
                common.more.learn(accepted - 1.0)

    def _learn(self, chance: Chance, hit: bool) -> bool:
        """Count a trial; whether it says anything about the working state."""
        works, shift = self.doubt < 0.5, self._shift
        doubt = self.doubt + _BREAKS * (1.0 - self.doubt) - self._mends * self.doubt
        broken = doubt * (_HIT_IF_BROKEN if hit else 1.0 - _HIT_IF_BROKEN)
        self.doubt = broken / (
            broken + (1.0 - doubt) * (chance.value if hit else 1.0 - chance.value)
        )
        if works:
            # Not limited as in `survival`: a hit that was certain anyway is no surprise.
            p = 1.0 / (1.0 + math.exp(-chance.log_odds - shift))
            precision = self._precision + p * (1.0 - p)
            shift += (hit - p) / precision
            self._shift = min(max(shift, -_FURTHEST), _FURTHEST)
            self._precision = min(precision, _FIRMEST)
            chance.learn(hit)
        return works

    def close(self) -> None:
        """The request is over."""
        if self._tried:
            self.common.doubt.learn(self.doubt)
