"""How likely the target is to accept what a candidate proposes: over all requests, and for each.

Estimators forget slowly, need no clock, and are deterministic.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from specstream.speculation.policy.records import Candidate, Offer

__all__ = ["Acceptance", "Average", "Chance", "Doubt", "Lean", "RequestAcceptance"]

_FURTHEST = 4.5  # log-odds (a chance of 0.989) beyond which estimates are not told apart
_SPREAD, _FIRMEST = 0.7, 6.0  # of a request's lean: prior deviation, and largest precision
_HIT_IF_BROKEN, _BREAKS = 0.02, 0.002  # chance of a hit while broken; of breaking, per trial

# Edges of the confidence buckets: the draft's probability of its token.
_EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
_MIDDLES = (0.06, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.93, 0.97, 0.99, 0.998)

# Evidence classes of a draft that gives none: the first token by how the draft's last round went (not
# asked yet, rejected, accepted in part, accepted in full), then by depth.
_UNASKED, _REJECTED, _PART, _WHOLE = range(4)
_DEPTHS = (4, 5, 6, 7, 8)
_DRAFT_PRIORS = (0.62, 0.55, 0.6, 0.7, 0.65, 0.68, 0.71, 0.74, 0.75)


class Chance:
    """A probability from hits and misses. ``prior`` counts as 4.5 trials; old trials fade."""

    __slots__ = ("_hits", "_trials", "log_odds", "value")

    def __init__(self, prior: float) -> None:
        self._hits, self._trials = prior * 4.5, 4.5
        self._update()

    def learn(self, hit: bool) -> None:
        """Count a trial."""
        fade = min(1.0, 400.0 / (self._trials + 1.0))
        self._hits = (self._hits + hit) * fade
        self._trials = (self._trials + 1.0) * fade
        self._update()

    def _update(self) -> None:
        self.value = p = self._hits / self._trials
        p = min(max(p, 1e-4), 1.0 - 1e-4)
        self.log_odds = math.log(p / (1.0 - p))


class Average:
    """A mean that starts at ``prior``, worth ``weight`` values, and fades after ``memory`` of them."""

    __slots__ = ("_memory", "_weight", "value")

    def __init__(self, prior: float, weight: float, memory: float) -> None:
        self.value = prior
        self._weight = weight
        self._memory = memory

    def learn(self, value: float) -> None:
        """Count one value."""
        self._weight = min(self._weight + 1.0, self._memory)
        self.value += (value - self.value) / self._weight


class Lean:
    """How far one request deviates from all, in log-odds.

    One Newton step on the log-likelihood per trial (a scalar extended Kalman filter) from a normal
    prior. The precision is bounded, so that changes of the text are followed.
    """

    __slots__ = ("_precision", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self._precision = 1.0 / (_SPREAD * _SPREAD)

    def chance(self, base: float) -> float:
        """The request's probability of what has log-odds ``base`` over all requests."""
        x = min(max(base + self.value, -_FURTHEST), _FURTHEST)
        return 1.0 / (1.0 + math.exp(-x))

    def learn(self, base: float, hit: bool, weight: float = 1.0) -> None:
        """Count a trial of log-odds ``base``."""
        # Not limited as in `chance`: a hit that was certain anyway is no surprise.
        p = 1.0 / (1.0 + math.exp(-base - self.value))
        precision = self._precision + weight * p * (1.0 - p)
        moved = self.value + weight * (hit - p) / precision
        self._precision = min(precision, _FIRMEST)
        self.value = min(max(moved, -_FURTHEST), _FURTHEST)


class Doubt:
    """Probability that a candidate is useless at present: a two-state hidden Markov model.

    A few misses where hits were likely make it certain, one hit dispels it. What was learned of the
    working state survives a broken spell.

    Args:
        value: The initial probability.
        mends: Chance that a broken spell ends, per trial.
    """

    __slots__ = ("_mends", "value")

    def __init__(self, value: float, mends: float) -> None:
        self.value = value
        self._mends = mends

    def learn(self, working: float, hit: bool) -> None:
        """Count a trial whose chance is ``working`` in the working state."""
        doubt = self.value + _BREAKS * (1.0 - self.value) - self._mends * self.value
        broken = doubt * (_HIT_IF_BROKEN if hit else 1.0 - _HIT_IF_BROKEN)
        works = (1.0 - doubt) * (working if hit else 1.0 - working)
        self.value = broken / (broken + works)


class Acceptance:
    """One candidate's acceptance over all requests that decode alike (greedily, or sampled).

    Only tokens whose predecessors were all accepted are trials.

    Attributes:
        chances: Acceptance by evidence class.
        of_confidence: Acceptance by bucket of the token's own confidence.
        more: Tokens accepted beyond the first, if the first was and the draft was free to go on.
        longer: Tokens drafted beyond the first, if the draft was free to go on.
        doubt: `Doubt` at the end of a request.
    """

    def __init__(self, candidate: Candidate, greedy: bool) -> None:
        self.candidate = candidate
        self.chances = [Chance(p) for p in candidate.priors or _DRAFT_PRIORS]
        # The target accepts a sampled token of low probability more often than the draft expects it.
        low, high = (0.15, 0.99) if greedy else (0.3, 0.98)
        self.of_confidence = [Chance(low + (high - low) * q) for q in _MIDDLES]
        self.more = Average(1.4, 3.0, 100.0)
        self.longer = Average(2.0, 3.0, 100.0)
        self.doubt = Average(0.1, 2.0, 5.0)


class RequestAcceptance:
    """How one request differs from all."""

    __slots__ = ("_last", "calibration", "common", "doubt", "lean", "longer", "more", "tried")

    def __init__(self, common: Acceptance) -> None:
        self.common = common
        self.lean, self.calibration = Lean(), Lean()
        # A candidate without draft passes is compared every round, so its broken spells have more
        # trials.
        mends = 0.004 if common.candidate.passes == "none" else 0.02
        self.doubt = Doubt(common.doubt.value, mends)
        self.more = Average(common.more.value, 3.0, 12.0)
        self.longer = Average(common.longer.value, 3.0, 12.0)
        self.tried = False
        self._last = _UNASKED

    def _classes(self, offer: Offer, count: int) -> Sequence[int]:
        if offer.evidence:
            return offer.evidence
        return (self._last, *_DEPTHS, *(_DEPTHS[-1],) * (count - len(_DEPTHS) - 1))

    def survival(self, offer: Offer, count: int) -> list[float]:
        """Probability that token 1, 2, … ``count`` is accepted with all before it."""
        chances, lean, made = self.common.chances, self.lean, []
        reached, last, chance = 1.0 - self.doubt.value, -1, 0.0
        classes = self._classes(offer, count)
        for index in range(count):
            if classes[index] != last:
                last = classes[index]
                chance = lean.chance(chances[last].log_odds)
            reached *= chance
            made.append(reached)
        return made

    def expected(self, offer: Offer, count: int) -> list[tuple[float, float]]:
        """Of token 1, 2, … ``count``: chance to be accepted with all before it; to be drafted at all.

        A draft that stops by its confidence seldom gets to the later ones.
        """
        if not self.common.candidate.stops:
            return [(chance, 1.0) for chance in self.survival(offer, count)]
        (chance,) = self.survival(offer, 1)
        more = self.more.value / (1.0 + self.more.value)
        longer = self.longer.value / (1.0 + self.longer.value)
        return [(chance * more**k, longer**k) for k in range(count)]

    def start(self) -> float:
        """Probability that the candidate works: of a chain before its first token."""
        return 1.0 - self.doubt.value

    def after(self, survival: float, confidence: float) -> tuple[float, float]:
        """A chain's survival after a token of that confidence; the same with the next token."""
        chances = self.common.of_confidence[bisect_right(_EDGES, confidence)]
        survival *= self.calibration.chance(chances.log_odds)
        return survival, survival * self.lean.chance(self.common.chances[_DEPTHS[1]].log_odds)

    def observe(
        self, offer: Offer, accepted: int, count: int, confidences: Sequence[float] = ()
    ) -> None:
        """Learn from a proposal of ``count`` tokens (levels): the accepted, the first rejected."""
        common, self.tried = self.common, True
        classes = self._classes(offer, count)
        for index in range(min(accepted + 1, count)):
            hit = index < accepted
            working = self.doubt.value < 0.5  # else the trial says nothing about the working state
            chance = common.chances[classes[index]]
            self.doubt.learn(chance.value, hit)
            self.lean.learn(chance.log_odds, hit, 1.0 - self.doubt.value)
            if not working:
                continue
            chance.learn(hit)
            if confidences:
                of_confidence = common.of_confidence[bisect_right(_EDGES, confidences[index])]
                self.calibration.learn(of_confidence.log_odds, hit)
                of_confidence.learn(hit)
        self._last = _WHOLE if accepted == count else _PART if accepted else _REJECTED

    def observe_length(self, accepted: int, drafted: int) -> None:
        """Learn how far a chain goes that is free to."""
        for learner in (self, self.common):
            learner.longer.learn(drafted - 1.0)
            if accepted:
                learner.more.learn(accepted - 1.0)

    def close(self) -> None:
        """The request is over."""
        if self.tried:
            self.common.doubt.learn(self.doubt.value)
