"""How likely the target is to keep what the draft model says, and how that shows in advance."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from specstream.speculation.policy.estimates import Average, Chance, Doubt, Lean

__all__ = ["EDGES", "DraftAcceptance", "DraftHabits"]

# Buckets of the draft's own probability of a token; finer where it decides most.
EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
_MIDDLES = (0.06, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.93, 0.97, 0.99, 0.998)
_WEIGHT, _MEMORY = 3.0, 12.0  # rounds that the common lengths are worth, and rounds remembered
_MENDS = 0.02  # of broken spells, by the trial: few are made while they last
_UNASKED, _REJECTED, _PART, _WHOLE = range(4)
_DEEPEST = 5  # depths from here on share one chance


class DraftAcceptance:
    """What all requests of one kind (greedy or sampled) have in common.

    Only tokens whose predecessors were all accepted tell anything, and only those are counted.

    Attributes:
        of_confidence: Chance that a token stands, by bucket of its confidence.
        after: Chance that the *next* token will stand if this one does, by this one's bucket.
        at_depth: Chance that the second, third … token stands, the ones before it standing.
        opening: Chance that the first one does, by how the draft fared last: not asked yet, rejected
            at once, in part, all of it accepted.
        more: Tokens accepted beyond the first, where the first was and the draft was free to go on.
        longer: Tokens drafted beyond the first, where the draft was free to go on.
        doubt: How likely the draft was to be broken at the end of a request.
    """

    def __init__(self, greedy: bool) -> None:
        # A greedy draft is right about as often as it says. A sampled token with low probability
        # is likelier to stand than that: the target only has to find it no less likely.
        low, high = (0.15, 0.99) if greedy else (0.3, 0.98)
        self.of_confidence = [Chance(low + (high - low) * q, 6.0, 400.0) for q in _MIDDLES]
        self.after = [Chance(0.6 + 0.25 * q, 4.0, 300.0) for q in _MIDDLES]
        self.at_depth = [Chance(min(0.65 + 0.03 * i, 0.75), 4.0, 300.0) for i in range(_DEEPEST)]
        self.opening = [Chance(p, 4.0, 300.0) for p in (0.62, 0.55, 0.6, 0.7)]
        self.more = Average(1.4, 3.0, 100.0)
        self.longer = Average(2.0, 3.0, 100.0)
        self.doubt = Average(0.1, 2.0, 5.0)


@dataclass(slots=True)
class DraftHabits:
    """How one request differs from that."""

    common: DraftAcceptance
    lean: Lean = field(default_factory=Lean)
    calibration: Lean = field(default_factory=lambda: Lean(0.5))
    doubt: Doubt = field(init=False)
    more: Average = field(init=False)
    longer: Average = field(init=False)
    last: int = _UNASKED

    def __post_init__(self) -> None:
        self.doubt = Doubt(self.common.doubt.value, _MENDS)
        self.more = self.common.more.heir(_WEIGHT, _MEMORY)
        self.longer = self.common.longer.heir(_WEIGHT, _MEMORY)

    def first(self) -> float:
        """Probability that the first token stands."""
        return self.doubt.chance(self.lean.chance(self._base(0).log_odds))

    def fixed(self, count: int) -> list[float]:
        """Probability that token 1, 2, … ``count`` stands with all before it, none left out."""
        made, survival = [], 1.0 - self.doubt.value
        for depth in range(count):
            survival *= self.lean.chance(self._base(depth).log_odds)
            made.append(survival)
        return made

    def _base(self, depth: int) -> Chance:
        if depth == 0:
            return self.common.opening[self.last]
        return self.common.at_depth[min(depth, _DEEPEST) - 1]

    def free(self, cap: int, usual: int) -> tuple[float, float]:
        """Expected tokens accepted and drafted, where the draft may stop itself, up to ``cap``.

        ``usual`` is the cap under which the averages were learned.
        """
        more, longer = self.more.value, self.longer.value
        if cap < usual:
            more *= _fitting(more, cap, usual)
            longer *= _fitting(longer, cap, usual)
        return self.first() * (1.0 + more), 1.0 + longer

    def observe(self, accepted: int, confidences: tuple[float, ...], drafted: int) -> None:
        """Learn from a round's judged tokens: the accepted ones, and the first that was not."""
        common, lean, doubt = self.common, self.lean, self.doubt
        for i in range(min(accepted + 1, drafted)):
            hit = i < accepted
            guess = base = self._base(i)
            if confidences and i > 0:
                guess = common.after[bisect_right(EDGES, confidences[i - 1])]
            doubt.learn(guess.value, hit)
            sound = 1.0 - doubt.value
            lean.learn(guess.log_odds, hit, sound)
            if sound < 0.5:
                continue  # says nothing about drafts that work
            if confidences:
                of_confidence = common.of_confidence[bisect_right(EDGES, confidences[i])]
                self.calibration.learn(of_confidence.log_odds, hit)
                of_confidence.learn(hit)
            base.learn(hit)
            if guess is not base:
                guess.learn(hit)

        self.last = _WHOLE if accepted == drafted else _PART if accepted else _REJECTED

    def close(self) -> None:
        """The request is over."""
        self.common.doubt.learn(self.doubt.value)

    def observe_length(self, accepted: int, drafted: int) -> None:
        """Learn how far the draft goes when it is free to."""
        for who in (self, self.common):
            who.longer.learn(drafted - 1.0)
            if accepted > 0:
                who.more.learn(accepted - 1.0)


def _fitting(mean: float, cap: int, usual: int) -> float:
    """The part of a further length, falling off geometrically, that fits under a smaller cap."""
    ratio = mean / (1.0 + mean)
    return float((1.0 - ratio ** (cap - 1)) / (1.0 - ratio ** (usual - 1)))
