"""Estimates of how likely the target accepts a candidate's tokens, over all requests and for each one.

The estimators are deterministic, use no clock, and forget old trials slowly.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from specstream.speculation.policy.records import Candidate, Offer

__all__ = ["Acceptance", "Average", "Chance", "RequestAcceptance"]

_FURTHEST = 4.5  # log-odds at which a request's shift is clipped
_MOST_ODDS = math.exp(_FURTHEST)  # odds at which estimates are clipped (probability 0.989)
_SPREAD = 0.7  # prior standard deviation of a request's shift, in log-odds
_FIRMEST = 6.0  # upper bound of the shift's precision, so that changes of the text are followed
_LEAST = 0.03  # a token less likely to be accepted never pays for its part of a target pass
_HIT_IF_BROKEN = 0.02  # probability that a useless candidate's token is accepted
_BREAKS = 0.002  # probability per trial that a working candidate becomes useless
_MENDS, _MENDS_COMPARED = (
    0.02,
    0.004,
)  # that a useless one works again; for lookups, tried each round

# Edges and centres of the confidence buckets: the draft's own probability of its token.
_EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
_MIDDLES = (0.06, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.93, 0.97, 0.99, 0.998)

_DRAFT_PRIORS = (
    0.6,
    0.65,
    0.7,
)  # prior acceptance by position, for drafts without evidence classes
_TOLD = 6.0  # weight in trials of an acceptance rate that the trainer measured


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


class Chance(Average):
    """Running mean of hits and misses, also as odds."""

    __slots__ = ("odds",)

    def __init__(self, prior: float, weight: float = 3.0) -> None:
        super().__init__(prior, weight, 400.0)
        self.odds = _odds(prior)

    def learn(self, value: float) -> None:
        """Count one trial: 1 for a hit, 0 for a miss."""
        super().learn(value)
        self.odds = _odds(self.value)


def _odds(p: float) -> float:
    return min(max(p, 1e-4) / max(1.0 - p, 1e-4), 1e4)


class Acceptance:
    """Acceptance of one candidate over all greedy requests, or over all sampled ones.

    A token counts as a trial only if all tokens before it were accepted.

    Attributes:
        chances: Acceptance rate by evidence class; by position for a draft without evidence classes.
        of_confidence: Acceptance rate by bucket of the draft's own probability of the token.
        more: Mean number of tokens accepted after an accepted first one, over drafts that only their
            confidence ended.
        longer: Mean number of tokens drafted after the first one, over the same drafts.
        doubt: Mean of `RequestAcceptance.doubt` at the end of requests.
    """

    def __init__(self, candidate: Candidate, greedy: bool) -> None:
        self.candidate = candidate
        told, priors = candidate.acceptance, candidate.priors or _DRAFT_PRIORS
        # A low measured rate at a later position is not used: a second token would never be drafted,
        # and the estimate never corrected.
        later = [max(pair) for pair in zip(priors[1:], told[1:], strict=False)]
        self.chances = [Chance(p) for p in (priors[0], *later, *priors[1 + len(later) :])]
        if told:
            self.chances[0] = Chance(told[0], _TOLD)
        # In sampling, the target accepts a token of low draft probability more often than greedily.
        low, high = (0.15, 0.99) if greedy else (0.3, 0.98)
        self.of_confidence = [Chance(low + (high - low) * q) for q in _MIDDLES]
        self.more, self.longer = Average(1.4, 3.0, 100.0), Average(2.0, 3.0, 100.0)
        self.doubt = Average(0.03 if told else 0.1, 2.0, 5.0)


class RequestAcceptance:
    """Acceptance of one candidate for one request: the common estimate, shifted in log-odds.

    The shift is learned by one Newton step on the log-likelihood per trial (a scalar extended Kalman
    filter). Its precision is bounded, so that it follows changes of the text.

    Attributes:
        common: The estimate over all requests.
        doubt: Probability that the candidate is useless at present: the filter of a two-state hidden
            Markov model (working, useless). A few misses where hits were likely bring it near 1, one
            hit brings it near 0. The rates of the working state are not learned from while the
            candidate is probably useless.
    """

    __slots__ = ("_factor", "_mends", "_precision", "_shift", "_tried", "common", "doubt")

    def __init__(self, common: Acceptance) -> None:
        self.common, self.doubt, self._tried = common, common.doubt.value, False
        self._shift, self._factor = 0.0, 1.0  # in log-odds, and what odds are multiplied by
        self._precision = 1.0 / (_SPREAD * _SPREAD)
        self._mends = _MENDS_COMPARED if common.candidate.passes == "none" else _MENDS

    def survival(self, offer: Offer, count: int) -> list[float]:
        """Return the probabilities that the first 1, 2, ... ``count`` tokens are all accepted.

        The list ends early, but not before its first entry, where a probability is 0.03 or less.
        """
        chances, evidence, factor = self.common.chances, offer.evidence, self._factor
        made, reached, last, chance = list[float](), 1.0 - self.doubt, -1, 0.0
        for index in range(count):
            kind = evidence[index] if evidence else min(index, len(chances) - 1)
            if kind != last:
                last, odds = kind, min(chances[kind].odds * factor, _MOST_ODDS)
                chance = odds / (1.0 + odds)
            reached *= chance
            if index and reached <= _LEAST:
                break
            made.append(reached)
        return made

    def first(self, offer: Offer) -> float:
        """Return the probability that the first token of a proposal is accepted."""
        chance = self.common.chances[offer.evidence[0] if offer.evidence else 0]
        odds = min(chance.odds * self._factor, _MOST_ODDS)
        return (1.0 - self.doubt) * odds / (1.0 + odds)

    def free(self, offer: Offer, most: int) -> tuple[float, float]:
        """Return the expected accepted and drafted tokens of a draft that its confidence ends.

        ``most`` is the largest number of tokens that it may draft.
        """
        first, more, longer = self.first(offer), self.common.more.value, self.common.longer.value
        # Both are taken for means of geometric distributions, and cut off at ``most``.
        share, length = more / (1.0 + more), longer / (1.0 + longer)
        drafted = (1.0 + longer) * (1.0 - length**most)
        return first * (1.0 + more) * (1.0 - share**most), min(drafted, float(most))

    def of_confidence(self) -> tuple[Sequence[float], list[float], float]:
        """Return the edges of the confidence buckets, their rates, and the rate of second tokens."""
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
        """Learn from a proposal: each accepted token is a hit, the first rejected one a miss.

        Args:
            offer: The offer that it was made from.
            accepted: Number of accepted tokens.
            count: Number of proposed tokens (a tree's levels).
            confidences: The draft's probability of each token; empty: unknown.
            free: Whether only the draft's confidence ended the draft.
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
        """Count one trial; return whether it was attributed to the working state."""
        works, shift = self.doubt < 0.5, self._shift
        doubt = self.doubt + _BREAKS * (1.0 - self.doubt) - self._mends * self.doubt
        broken = doubt * (_HIT_IF_BROKEN if hit else 1.0 - _HIT_IF_BROKEN)
        self.doubt = broken / (
            broken + (1.0 - doubt) * (chance.value if hit else 1.0 - chance.value)
        )
        if works:
            # Not clipped as in `survival`: a hit that was nearly certain must not move the shift.
            odds = chance.odds * self._factor
            p = odds / (1.0 + odds)
            precision = self._precision + p * (1.0 - p)
            shift += (hit - p) / precision
            self._shift = min(max(shift, -_FURTHEST), _FURTHEST)
            self._factor = math.exp(self._shift)
            self._precision = min(precision, _FIRMEST)
            chance.learn(hit)
        return works

    def close(self) -> None:
        """Learn the doubt at the end of the request."""
        if self._tried:
            self.common.doubt.learn(self.doubt)
