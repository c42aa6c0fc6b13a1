"""What a round costs on this machine, from the rounds that were run: c, v and o of the formula."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from specstream.bench.formula import Optimum, acceptance_from, optimum
from specstream.bench.records import Emission, Run

__all__ = ["Ceiling", "Costs", "ceiling_of", "costs_of"]

_FEW = 3  # a width seen less often than this says little
_ROUND = tuple[float, Emission]  # milliseconds since the emission before, and the emission


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs in units of one plain round (``plain_ms``: the median time between plain tokens).

    ``v``, ``o`` and ``plain_o`` are common to all domains; the others are the domain's own, since
    prompts differ in length and proposers take turns.

    Attributes:
        plain_ms: Milliseconds of a plain round.
        c: A drafted token, averaged over who proposed it.
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


@dataclass(frozen=True, slots=True)
class _Domain:
    """The rounds of one domain, sorted."""

    plain: list[_ROUND]
    drafting: list[_ROUND]
    firsts: list[_ROUND]

    @property
    def unit(self) -> float:
        return statistics.median(gap for gap, _ in self.plain)


def costs_of(runs: Mapping[str, tuple[Sequence[Run], Sequence[Run]]]) -> dict[str, Costs]:
    """Medians over rounds, by domain; domains with too few rounds are left out.

    Args:
        runs: By domain: runs of the loop without speculation, and of the same engine with it.
    """
    sorted_out = {domain: _sort(*pair) for domain, pair in runs.items()}
    enough = {
        domain: found
        for domain, found in sorted_out.items()
        if len(found.plain) >= _FEW and len(found.drafting) >= _FEW and found.unit > 0
    }
    widths: dict[int, list[float]] = {}
    rests: list[float] = []
    plain_rests: list[float] = []
    for found in enough.values():
        unit = found.unit
        for _, emission in (*found.plain, *found.drafting):
            widths.setdefault(emission.drafted + 1, []).append(emission.verify_ms / unit)
        rests += [(gap - e.draft_ms - e.verify_ms) / unit for gap, e in found.drafting]
        plain_rests += [(gap - e.verify_ms) / unit for gap, e in found.plain]
    v = {width: statistics.median(times) for width, times in widths.items() if len(times) >= _FEW}
    return {
        domain: Costs(
            plain_ms=found.unit,
            c=_step_ms(found.drafting) / found.unit,
            v=v,
            o=max(0.0, statistics.median(rests)),
            plain_o=max(0.0, statistics.median(plain_rests)),
            first_ms=_first_ms(found),
            rounds=len(found.drafting),
        )
        for domain, found in enough.items()
    }


def _sort(plain: Sequence[Run], speculative: Sequence[Run]) -> _Domain:
    sorted_out = _Domain([one for run in plain for one in _rounds(run)], [], [])
    for run in speculative:
        mine = [(gap, emission) for gap, emission in _rounds(run) if emission.drafted]
        sorted_out.firsts.extend(mine[:1])
        sorted_out.drafting.extend(mine[1:])
    return sorted_out


def _rounds(run: Run) -> Iterator[_ROUND]:
    """Each emission after the first, with the time since the one before."""
    for before, emission in pairwise(run.emissions):
        yield emission.t_ms - before.t_ms, emission


def _step_ms(drafting: Sequence[_ROUND]) -> float:
    """Milliseconds a drafted token: the median round of each length, weighed by how often it came."""
    by_length: dict[int, list[float]] = {}
    for _, emission in drafting:
        by_length.setdefault(emission.drafted, []).append(emission.draft_ms)
    spent = sum(statistics.median(times) * len(times) for times in by_length.values())
    return spent / sum(drafted * len(times) for drafted, times in by_length.items())


def _first_ms(found: _Domain) -> float:
    step = _step_ms(found.drafting)
    return max(0.0, statistics.median(e.draft_ms - step * e.drafted for _, e in found.firsts))


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What the formula says of one domain.

    Attributes:
        acceptance: The chance that a draft that is judged stands: the formula's alpha.
        best: The best fixed K at that acceptance and these costs.
        as_run: Tokens committed over what their rounds cost by c, v and o.
        measured: The decode ratio that was measured.
    """

    acceptance: float
    best: Optimum
    as_run: float
    measured: float | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "alpha": round(self.acceptance, 4),
            "best_drafts": self.best.drafts,
            "best_tokens_a_round": round(self.best.tokens, 4),
            "best_speedup": round(self.best.speedup, 4),
            "as_run": round(self.as_run, 4),
            "measured": None if self.measured is None else round(self.measured, 4),
        }


def ceiling_of(costs: Costs, runs: Sequence[Run], measured: float | None) -> Ceiling | None:
    """The formula for one domain's runs; None if nothing was drafted there.

    Drafts after the first that fell were never judged: alpha is accepted over accepted and fallen. Where
    the engine drafts only when it expects to gain, alpha is that of the rounds it chose: the best is a
    ceiling then, not a promise.
    """
    rounds = [emission for run in runs for _, emission in _rounds(run)]
    accepted = sum(emission.accepted for emission in rounds)
    judged = sum(min(emission.accepted + 1, emission.drafted) for emission in rounds)
    if not judged:
        return None
    alpha = accepted / judged
    most = max(8, max(costs.v) - 1)  # further would rest on extrapolated passes
    best = optimum(acceptance_from((), alpha), costs.c, costs.v_at, costs.o, most=most)
    spent = sum(
        costs.c * e.drafted + costs.v_at(e.drafted + 1) + (costs.o if e.drafted else costs.plain_o)
        for e in rounds
    )
    tokens = sum(emission.tokens for emission in rounds)
    return Ceiling(alpha, best, tokens / spent if spent else 1.0, measured)
