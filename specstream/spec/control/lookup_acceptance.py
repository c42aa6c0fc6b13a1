"""How likely prompt lookup is to be right, by how much of the text it has found again."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from specstream.spec.control.estimates import Average, Chance, Doubt, Lean

__all__ = ["LookupAcceptance", "LookupHabits"]

# A token that lookup offers at position i after a match of m tokens is as good as one right after a
# match of m + i: if it is reached at all, the match has grown by i.
_EDGES = (2, 3, 4, 5, 7, 10, 16, 24)
_PRIORS = (0.3, 0.5, 0.65, 0.72, 0.76, 0.8, 0.85, 0.88, 0.88)
_GROUPS = (0, 1, 1, 2, 2, 2, 2, 2, 2)  # a request leans alike within a group
_MENDS = 0.004  # of spells in which nothing repeats, by the trial
_BUCKET = [bisect_right(_EDGES, length) for length in range(64)]


class LookupAcceptance:
    """What all requests of one kind (greedy or sampled) have in common.

    Attributes:
        of_length: Chance that a token stands, by bucket of the length matched before it.
        doubt: How likely lookup was to be useless at the end of a request.
    """

    def __init__(self) -> None:
        self.of_length = [Chance(p, 3.0, 400.0) for p in _PRIORS]
        self.doubt = Average(0.05, 2.0, 5.0)


@dataclass(slots=True)
class LookupHabits:
    """How one request differs from that: some texts repeat themselves, others only seem to."""

    common: LookupAcceptance
    leans: tuple[Lean, Lean, Lean] = field(default_factory=lambda: (Lean(), Lean(), Lean()))
    doubt: Doubt = field(init=False)

    def __post_init__(self) -> None:
        self.doubt = Doubt(self.common.doubt.value, _MENDS)

    def survival(self, match: int, count: int) -> list[float]:
        """Probability that token 1, 2, … ``count`` of an offer stands with all before it."""
        of_length, leans = self.common.of_length, self.leans
        made, reached, last, chance = [], 1.0 - self.doubt.value, -1, 0.0
        for length in range(match, match + count):
            bucket = _BUCKET[min(length, 63)]
            if bucket != last:
                chance = leans[_GROUPS[bucket]].chance(of_length[bucket].log_odds)
                last = bucket
            reached *= chance
            made.append(reached)
        return made

    def observe(self, match: int, offered: int, agreed: int) -> None:
        """Learn from the tokens of an offer that can be judged."""
        for i in range(min(agreed + 1, offered)):
            bucket = _BUCKET[min(match + i, 63)]
            chance = self.common.of_length[bucket]
            hit = i < agreed
            self.doubt.learn(chance.value, hit)
            sound = 1.0 - self.doubt.value
            self.leans[_GROUPS[bucket]].learn(chance.log_odds, hit, sound)
            if sound >= 0.5:  # else it says nothing about texts that repeat themselves
                chance.learn(hit)

    def close(self) -> None:
        """The request is over."""
        self.common.doubt.learn(self.doubt.value)
