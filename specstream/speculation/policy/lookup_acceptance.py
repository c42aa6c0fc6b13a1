"""How likely prompt lookup is to be right, by how much of the text it has found again."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from specstream.speculation.policy.estimates import Average, Chance, Doubt, Lean

__all__ = ["LookupAcceptance", "LookupHabits"]

# A token that lookup offers at position i after a match of m tokens is as good as one right after a
# match of m + i: if it is reached at all, the match has grown by i.
_EDGES = (2, 3, 4, 5, 7, 10, 16, 24)
_BUCKET = [bisect_right(_EDGES, length) for length in range(64)]
# Of the first token, by what the match's last token went on with elsewhere.
_FIRST = (
    (0.25, 0.6, 0.68, 0.73, 0.76, 0.85),
    (0.2, 0.35, 0.5, 0.62, 0.68, 0.7),
    (0.5, 0.8, 0.86, 0.88, 0.9, 0.93),
)
_LATER = (0.6, 0.62, 0.68, 0.74, 0.78, 0.82, 0.83, 0.88, 0.88)
_MENDS = 0.004  # of spells in which nothing repeats, by the trial
_NOUGHT = 0.003  # a chance too small to go on from
_LEAST = 0.1  # doubt of a text that has not repeated itself yet


class LookupAcceptance:
    """What all requests of one kind (greedy or sampled) have in common.

    Attributes:
        first: Chance that an offer's first token stands, by support and bucket of the match's length.
        later: Chance that a later token stands, by bucket of the length matched before it.
        doubt: How likely lookup was to be useless at the end of a request.
    """

    def __init__(self) -> None:
        self.first = [[Chance(p, 5.0, 400.0) for p in row] for row in _FIRST]
        self.later = [Chance(p, 5.0, 400.0) for p in _LATER]
        self.doubt = Average(0.05, 2.0, 5.0)


@dataclass(slots=True)
class LookupHabits:
    """How one request differs from that: some texts repeat themselves, others only seem to."""

    common: LookupAcceptance
    leans: tuple[Lean, Lean, Lean] = field(default_factory=lambda: (Lean(), Lean(), Lean()))
    doubt: Doubt = field(init=False)

    def __post_init__(self) -> None:
        self.doubt = Doubt(max(self.common.doubt.value, _LEAST), _MENDS)

    def _first(self, match: int, support: int) -> Chance:
        return self.common.first[support][min(_BUCKET[min(match, 63)], 5)]

    def survival(self, match: int, support: int, count: int) -> list[float]:
        """Probability that token 1, 2, … of an offer stands with all before it.

        Up to ``count`` of them, or until hardly one is left.
        """
        reached = 1.0 - self.doubt.value
        reached *= self.leans[match > 1].chance(self._first(match, support).log_odds)
        made = [reached]
        later, lean = self.common.later, self.leans[2]
        last, chance = -1, 0.0
        for length in range(match + 1, match + count):
            if reached < _NOUGHT:
                break
            bucket = _BUCKET[min(length, 63)]
            if bucket != last:
                chance = lean.chance(later[bucket].log_odds)
                last = bucket
            reached *= chance
            made.append(reached)
        return made

    def observe(self, match: int, support: int, offered: int, agreed: int) -> None:
        """Learn from the tokens of an offer that can be judged."""
        if offered < 1:
            return
        # A miss makes doubtful, but counts: else chances would be learned from the hits alone.
        known = self.doubt.value < 0.5
        first = self._first(match, support)
        self.doubt.learn(first.value, agreed > 0)
        sound = 1.0 - self.doubt.value
        self.leans[match > 1].learn(first.log_odds, int(agreed > 0), sound)
        if known:
            first.learn(int(agreed > 0))
        # Those further on in runs, as many as are judged by the same chance.
        later, judged, at = self.common.later, min(agreed + 1, offered), 1
        while at < judged:
            bucket, end = _BUCKET[min(match + at, 63)], at + 1
            while end < judged and _BUCKET[min(match + end, 63)] == bucket:
                end += 1
            hits, trials, chance = min(agreed, end) - at, end - at, later[bucket]
            self.leans[2].learn(chance.log_odds, hits, sound, trials)
            chance.learn(hits, trials)
            at = end

    def close(self) -> None:
        """The request is over."""
        self.common.doubt.learn(self.doubt.value)
