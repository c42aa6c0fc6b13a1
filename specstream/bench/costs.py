"""What a round costs on this machine, and the best speedup that these costs allow.

With K drafted tokens a round, a draft cost of ``c`` plain rounds a token, a target pass over M tokens
that costs ``v(M)`` plain rounds and an overhead of ``o`` (Leviathan et al. 2023, with v and o added):

    S(K) = E[tau] / (c K + v(K + 1) + o),   E[tau]: mean number of tokens that a round commits
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from specstream.bench.records import Emission, Run

__all__ = ["Ceiling", "Costs", "best_speedup", "ceiling_of", "costs_of", "expected_tokens"]

_FEW = 3  # fewer rounds of a width, or of a domain, are not used
_Round = tuple[float, Emission]  # milliseconds since the emission before, and the emission


def expected_tokens(acceptance: float, drafts: int) -> float:
    """E[tau] for ``drafts`` drafted tokens that are each accepted with probability ``acceptance``."""
    return sum(acceptance**position for position in range(drafts + 1))


def best_speedup(
    acceptance: float, c: float, v: Callable[[int], float], o: float = 0.0, *, most: int = 32
) -> tuple[int, float]:
    """The best number of drafts from 0 to ``most`` and its speedup; 0 drafts have a speedup of 1."""
    best = (0, 1.0)
    for drafts in range(1, most + 1):
        speedup = expected_tokens(acceptance, drafts) / (c * drafts + v(drafts + 1) + o)
        if speedup > best[1]:
            best = (drafts, speedup)
    return best


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs in units of one plain round. ``v``, ``o`` and ``plain_o`` are common to all domains.

    Attributes:
        plain_ms: Milliseconds of a plain round: the median time between plain tokens.
        c: A drafted token, averaged over the proposers.
        v: A target pass over M tokens, by M, for the widths that were observed.
        o: The rest of a round that drafts: verification, commit, rollback, emission.
        plain_o: The rest of a plain round.
        first_ms: Extra time of a request's first drafting round, in which the draft reads the prompt.
        rounds: Number of drafting rounds that were used.
    """

    plain_ms: float
    c: float
    v: dict[int, float]
    o: float
    plain_o: float
    first_ms: float
    rounds: int

    def v_at(self, width: int) -> float:
        """v(M), interpolated between observed widths and extrapolated by their average slope."""
        seen = sorted(self.v)
        below = [m for m in seen if m <= width]
        above = [m for m in seen if m > width]
        if not below:
            return self.v[seen[0]]
        if above:
            low, high = below[-1], above[0]
            slope = (self.v[high] - self.v[low]) / (high - low)
            return self.v[low] + slope * (width - low)
        low, high = seen[0], seen[-1]
        slope = max(0.0, (self.v[high] - self.v[low]) / (high - low)) if high > low else 0.0
        return self.v[high] + slope * (width - high)

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
    """The rounds of one domain. ``firsts`` are the first drafting rounds of their requests."""

    plain: list[_Round]
    drafting: list[_Round]
    firsts: list[_Round]

    @property
    def unit_ms(self) -> float:
        return statistics.median(gap for gap, _ in self.plain)

    @property
    def step_ms(self) -> float:
        """Milliseconds a drafted token: the median round of each length, weighted by frequency."""
        by_length: dict[int, list[float]] = {}
        for _, emission in self.drafting:
            by_length.setdefault(emission.drafted, []).append(emission.draft_ms)
        spent = sum(statistics.median(times) * len(times) for times in by_length.values())
        return spent / sum(drafted * len(times) for drafted, times in by_length.items())


def costs_of(runs: Mapping[str, tuple[Sequence[Run], Sequence[Run]]]) -> dict[str, Costs]:
    """Medians over rounds, by domain; domains with too few rounds are left out.

    Args:
        runs: By domain: runs without speculation, and runs of the same engine with speculation.
    """
    domains = {name: _sort(*pair) for name, pair in runs.items()}
    domains = {
        name: d
        for name, d in domains.items()
        if min(len(d.plain), len(d.drafting)) >= _FEW and d.unit_ms > 0
    }
    widths: dict[int, list[float]] = {}
    rests: list[float] = []
    plain_rests: list[float] = []
    for d in domains.values():
        unit = d.unit_ms
        for _, emission in (*d.plain, *d.drafting):
            widths.setdefault(emission.drafted + 1, []).append(emission.verify_ms / unit)
        rests += [(gap - e.draft_ms - e.verify_ms) / unit for gap, e in d.drafting]
        plain_rests += [(gap - e.verify_ms) / unit for gap, e in d.plain]
    v = {width: statistics.median(times) for width, times in widths.items() if len(times) >= _FEW}
    found = {}
    for name, d in domains.items():
        step = d.step_ms
        first = statistics.median(e.draft_ms - step * e.drafted for _, e in d.firsts)
        o, plain_o = statistics.median(rests), statistics.median(plain_rests)
        found[name] = Costs(
            d.unit_ms,
            step / d.unit_ms,
            v,
            max(0.0, o),
            max(0.0, plain_o),
            max(0.0, first),
            len(d.drafting),
        )
    return found


def _sort(plain: Sequence[Run], speculative: Sequence[Run]) -> _Domain:
    found = _Domain([one for run in plain for one in _rounds(run)], [], [])
    for run in speculative:
        drafting = [(gap, emission) for gap, emission in _rounds(run) if emission.drafted]
        found.firsts.extend(drafting[:1])
        found.drafting.extend(drafting[1:])
    return found


def _rounds(run: Run) -> Iterator[_Round]:
    for before, emission in pairwise(run.emissions):
        yield emission.t_ms - before.t_ms, emission


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What the formula says of one domain.

    Attributes:
        acceptance: Probability that a drafted token is accepted if those before it were: alpha.
        drafts: The best fixed number of drafts at these costs.
        speedup: The speedup with that number of drafts.
        as_run: Tokens committed, divided by the cost of their rounds by c, v and o.
        measured: The measured ratio of decode speeds.
    """

    acceptance: float
    drafts: int
    speedup: float
    as_run: float
    measured: float | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        tokens = expected_tokens(self.acceptance, self.drafts)
        return {
            "alpha": round(self.acceptance, 4),
            "best_drafts": self.drafts,
            "best_tokens_a_round": round(tokens, 4),
            "best_speedup": round(self.speedup, 4),
            "as_run": round(self.as_run, 4),
            "measured": None if self.measured is None else round(self.measured, 4),
        }


def ceiling_of(costs: Costs, runs: Sequence[Run], measured: float | None) -> Ceiling | None:
    """The formula for one domain's runs; None if nothing was drafted there.

    Drafts after the first rejected one were never verified, so alpha is accepted ÷ (accepted +
    rejected). Where the engine drafts only when it expects a gain, alpha is that of the rounds that it
    chose.
    """
    rounds = [emission for run in runs for _, emission in _rounds(run)]
    accepted = sum(emission.accepted for emission in rounds)
    verified = sum(min(emission.accepted + 1, emission.drafted) for emission in rounds)
    if not verified:
        return None
    alpha = accepted / verified
    most = max(8, max(costs.v) - 1)  # more drafts would rest on extrapolated passes
    drafts, speedup = best_speedup(alpha, costs.c, costs.v_at, costs.o, most=most)
    spent = sum(
        costs.c * e.drafted + costs.v_at(e.drafted + 1) + (costs.o if e.drafted else costs.plain_o)
        for e in rounds
    )
    as_run = sum(emission.tokens for emission in rounds) / spent if spent else 1.0
    return Ceiling(alpha, drafts, speedup, as_run, measured)
