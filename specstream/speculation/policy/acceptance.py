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

_DRAFT_PRIORS = (0.6, 0.65, 0.7)  # by position, of a draft that gives no evidence
_TOLD = 6.0  # trials that a trainer's figure counts as


class Chance:
    """A probability from hits and misses. ``prior`` counts as some trials; old trials fade."""

    __slots__ = ("_hits", "_trials", "log_odds", "value")

    def __init__(self, prior: float, trials: float = 3.0) -> None:
        self._hits, self._trials = prior * trials, trials
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

    def learn(self, base: float, hit: bool) -> None:
        """Count a trial of log-odds ``base``."""
        # Not limited as in `chance`: a hit that was certain anyway is no surprise.
        p = 1.0 / (1.0 + math.exp(-base - self.value))
        precision = self._precision + p * (1.0 - p)
        moved = self.value + (hit - p) / precision
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
        chances: Acceptance by evidence class; of a draft that gives no evidence, by position.
        of_confidence: Acceptance by bucket of the token's own confidence.
        more: Tokens accepted beyond the first, if the first was and the draft was free to go on.
        longer: Tokens drafted beyond the first, if the draft was free to go on.
        doubt: `Doubt` at the end of a request.
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
    """One request's acceptance: all requests', shifted by what is known of this one."""

    __slots__ = ("_common", "_lean", "_tried", "doubt")

    def __init__(self, common: Acceptance) -> None:
        self._common, self._lean, self._tried = common, Lean(), False
        # A candidate without draft passes is compared every round, so its broken spells have more
        # trials.
        mends = 0.004 if self.looked_up else 0.02
        self.doubt = Doubt(common.doubt.value, mends)

    @property
    def looked_up(self) -> bool:
        """Whether the candidate makes no draft passes."""
        return self._common.candidate.passes == "none"

    @property
    def told(self) -> bool:
        """Whether the candidate's trainer measured its acceptance."""
        return bool(self._common.candidate.acceptance)

    def _classes(self, offer: Offer, count: int) -> Sequence[int]:
        last = len(self._common.chances) - 1
        return offer.evidence or [min(index, last) for index in range(count)]

    def survival(self, offer: Offer, count: int) -> list[float]:
        """Probability that token 1, 2, … ``count`` is accepted with all before it."""
        made, reached, last, chance = list[float](), self.start(), -1, 0.0
        classes = self._classes(offer, count)
        for index in range(count):
            if classes[index] != last:
                last = classes[index]
                chance = self._lean.chance(self._common.chances[last].log_odds)
            reached *= chance
            made.append(reached)
        return made

    def expected(self, offer: Offer, count: int) -> list[tuple[float, float]]:
        """Of token 1, 2, … ``count``: chance to be accepted with all before it; to be drafted at all.

        A draft that stops by its confidence seldom gets to the later ones.
        """
        common = self._common
        if not common.candidate.stops:
            return [(chance, 1.0) for chance in self.survival(offer, count)]
        (chance,) = self.survival(offer, 1)
        more = common.more.value / (1.0 + common.more.value)
        longer = common.longer.value / (1.0 + common.longer.value)
        return [(chance * more**k, longer**k) for k in range(count)]

    def start(self) -> float:
        """Probability that the candidate works: of a chain before its first token."""
        return 1.0 - self.doubt.value

    def after(self, survival: float, confidence: float) -> tuple[float, float]:
        """A chain's survival after a token of that confidence; the same with the next token.

        Of the next token nothing is known yet: it is taken to be no likelier than this one, nor than
        second tokens are.
        """
        common = self._common
        chance = common.of_confidence[bisect_right(_EDGES, confidence)].value
        survival *= chance
        return survival, survival * min(chance, common.chances[1].value)

    def of_confidence(self) -> tuple[Sequence[float], list[float], float]:
        """What `after` goes by: edges of the buckets, a chance for each, and that of second tokens."""
        common = self._common
        chances = [one.value for one in common.of_confidence]
        return _EDGES, chances, common.chances[1].value

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
        common, self._tried = self._common, True
        classes = self._classes(offer, count)
        for index in range(min(accepted + 1, count)):
            hit, chance = index < accepted, common.chances[classes[index]]
            working = self.doubt.value < 0.5  # else the trial says nothing about the working state
            self.doubt.learn(chance.value, hit)
            if not working:
                continue
            self._lean.learn(chance.log_odds, hit)
            chance.learn(hit)
            if confidences:
                common.of_confidence[bisect_right(_EDGES, confidences[index])].learn(hit)
        if free:
            common.longer.learn(count - 1.0)
            if accepted:
                common.more.learn(accepted - 1.0)

    def close(self) -> None:
        """The request is over."""
        if self._tried:
            self._common.doubt.learn(self.doubt.value)
