"""What a round costs on this machine, from the rounds that were run: c, v and o of the formula."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from specstream.bench.figures import Figures
from specstream.bench.formula import Optimum, acceptance_from, expected_tokens, optimum
from specstream.bench.records import Emission, Run

__all__ = ["Ceiling", "Costs", "ceiling_of", "costs_of"]

_FEW = 3  # a width seen less often than this says little


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs in units of one plain round (``plain_ms``: the median time between plain tokens).

    Attributes:
        plain_ms: Milliseconds of a plain round.
        c: A drafted token.
        v: A pass over M tokens, by M; as far as such passes were seen.
        o: Everything else in a round that drafts: judging, commit, rollback, emission.
        plain_o: Everything else in a plain round.
        first_ms: What the first drafting round of a request takes longer: the draft reads the prompt.
        rounds: Drafting rounds that this was taken from.
    """

    plain_ms: float
    c: float
    v: dict[int, float]
    o: float
    plain_o: float
    first_ms: float
    rounds: int

    def v_at(self, width: int) -> float:
        """v(M), on the line between the nearest widths seen; beyond them, on their average slope."""
        seen = sorted(self.v)
        if width in self.v:
            return self.v[width]
        below = [m for m in seen if m < width]
        above = [m for m in seen if m > width]
        if below and above:
            low, high = below[-1], above[0]
            return self.v[low] + (self.v[high] - self.v[low]) * (width - low) / (high - low)
        low, high = seen[0], seen[-1]
        slope = max(0.0, (self.v[high] - self.v[low]) / (high - low)) if high > low else 0.0
        return self.v[high] + slope * (width - high) if below else self.v[low]

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "plain_round_ms": round(self.plain_ms, 4),
            "c": round(self.c, 4),
            "v": {str(width): round(cost, 4) for width, cost in sorted(self.v.items())},
            "o": round(self.o, 4),
            "plain_o": round(self.plain_o, 4),
            "draft_prefill_ms": round(self.first_ms, 3),
            "rounds": self.rounds,
        }


def costs_of(plain: Iterable[Run], speculative: Iterable[Run]) -> Costs | None:
    """Medians over rounds; None where there are too few to say anything.

    Args:
        plain: Runs of the loop without speculation.
        speculative: Runs of the same engine with it.
    """
    ones = [(gap, e) for run in plain for gap, e in _rounds(run)]
    drafting: list[tuple[float, Emission]] = []
    firsts: list[Emission] = []
    for run in speculative:
        mine = [(gap, e) for gap, e in _rounds(run) if e.drafted]
        firsts += [e for _, e in mine[:1]]
        drafting += mine[1:]
    if len(ones) < _FEW or len(drafting) < _FEW:
        return None
    unit = statistics.median(gap for gap, _ in ones)
    by_width: dict[int, list[float]] = {1: [e.verify_ms for _, e in ones]}
    for _, emission in drafting:
        by_width.setdefault(emission.drafted + 1, []).append(emission.verify_ms)
    step = statistics.median(e.draft_ms / e.drafted for _, e in drafting)
    rest = statistics.median(gap - e.draft_ms - e.verify_ms for gap, e in drafting)
    plain_rest = statistics.median(gap - e.verify_ms for gap, e in ones)
    return Costs(
        plain_ms=unit,
        c=step / unit,
        v={m: statistics.median(t) / unit for m, t in by_width.items() if len(t) >= _FEW},
        o=max(0.0, rest) / unit,
        plain_o=max(0.0, plain_rest) / unit,
        first_ms=max(0.0, statistics.median(e.draft_ms - step * e.drafted for e in firsts)),
        rounds=len(drafting),
    )


def _rounds(run: Run) -> Iterator[tuple[float, Emission]]:
    """Each emission after the first, with the time since the one before."""
    for before, emission in pairwise(run.emissions):
        yield emission.t_ms - before.t_ms, emission


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What the formula says of one domain.

    Attributes:
        best: The best K with this acceptance and these costs.
        as_run: What it predicts for the lengths that were drafted.
        measured: The decode ratio that was measured.
    """

    best: Optimum
    as_run: float
    measured: float | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "best_drafts": self.best.drafts,
            "best_tokens_a_round": round(self.best.tokens, 4),
            "best_speedup": round(self.best.speedup, 4),
            "formula_as_run": round(self.as_run, 4),
            "measured": None if self.measured is None else round(self.measured, 4),
        }


def ceiling_of(
    costs: Costs, figures: Figures, runs: Sequence[Run], measured: float | None
) -> Ceiling | None:
    """The formula, for one domain's acceptance; None if nothing was drafted there."""
    if not figures.drafted or figures.acceptance_rate is None:
        return None
    positions = figures.acceptance_by_position
    acceptance = acceptance_from(positions, positions[-1] if positions else 0.0)
    most = max(8, 2 * len(positions))
    best = optimum(acceptance, costs.c, costs.v_at, costs.o, most=most)
    tokens = spent = 0.0
    for run in runs:
        for _, emission in _rounds(run):
            k = emission.drafted
            tokens += expected_tokens(acceptance, k)
            spent += costs.c * k + costs.v_at(k + 1) + (costs.o if k else costs.plain_o)
    return Ceiling(best, tokens / spent if spent else 1.0, measured)
