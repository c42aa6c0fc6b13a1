"""The costs of a round on this machine, and the best speedup that these costs allow.

The unit of cost is the time of a plain round, which decodes one token without drafts. With K drafted
tokens a round, a draft cost of ``c`` a token, a target pass over M tokens that costs ``v(M)`` and an
overhead of ``o``, the speedup is (Leviathan et al. 2023, with v and o added):

    S(K) = E[tau] / (c K + v(K + 1) + o),   E[tau]: mean number of tokens that a round commits
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from specstream.bench.records import BenchRun, Emission, grouped

__all__ = [
    "Ceiling",
    "RoundCosts",
    "best_speedup",
    "ceiling_of",
    "costs_of",
    "expected_tokens",
    "pass_cost",
]

_FEW = 3  # with fewer rounds, a pass width or a domain is left out
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
class RoundCosts:
    """Costs in units of one plain round. ``v``, ``o`` and ``plain_o`` are common to all domains.

    The names of the fields are keys of ``bench.json``.
    """

    plain_round_ms: float  # the median time between plain tokens
    c: float  # a drafted token, averaged over the proposers
    v: dict[int, float]  # a target pass over M tokens, by M, for the widths that were observed
    o: float  # the rest of a round that drafts: verification, commit, rollback, emission
    plain_o: float  # the rest of a plain round
    draft_prefill_ms: float  # extra milliseconds of a request's first drafting round
    rounds: int  # drafting rounds that were used


def pass_cost(v: Mapping[int, float], width: int) -> float:
    """v(M), interpolated between observed widths and extrapolated by their average slope."""
    seen = sorted(v)
    at = bisect_right(seen, width)
    if at == 0 or len(seen) == 1:
        return v[seen[0]]
    beyond = at == len(seen)
    low, high = (seen[0], seen[-1]) if beyond else (seen[at - 1], seen[at])
    slope = (v[high] - v[low]) / (high - low)
    if beyond:
        return v[high] + max(0.0, slope) * (width - high)
    return v[low] + slope * (width - low)


class _Domain:
    """The rounds of one domain: plain rounds, each request's first drafting round, and the others."""

    def __init__(self, plain: Sequence[BenchRun], speculative: Sequence[BenchRun]) -> None:
        self.plain = [one for run in plain for one in _rounds(run)]
        drafting = [[one for one in _rounds(run) if one[1].drafted] for run in speculative]
        self.firsts = [one for of_run in drafting for one in of_run[:1]]
        self.drafting = [one for of_run in drafting for one in of_run[1:]]
        self.unit_ms = statistics.median(gap for gap, _ in self.plain) if self.plain else 0.0

    @property
    def enough(self) -> bool:
        """Whether there are enough rounds for medians."""
        return min(len(self.plain), len(self.drafting)) >= _FEW and self.unit_ms > 0

    @property
    def step_ms(self) -> float:
        """Milliseconds a drafted token: the median for each number of drafts, weighted by frequency."""
        by_length = grouped((emission.drafted, emission.draft_ms) for _, emission in self.drafting)
        spent = sum(statistics.median(times) * len(times) for times in by_length.values())
        return spent / sum(drafted * len(times) for drafted, times in by_length.items())


def costs_of(runs: Mapping[str, tuple[Sequence[BenchRun], Sequence[BenchRun]]]) -> dict[str, RoundCosts]:
    """Costs by domain, from medians over rounds; domains with too few rounds are left out.

    Args:
        runs: By domain: runs without speculation, and runs of the same engine with speculation.
    """
    all_domains = {name: _Domain(*pair) for name, pair in runs.items()}
    domains = {name: domain for name, domain in all_domains.items() if domain.enough}
    if not domains:
        return {}
    each = [(d.unit_ms, gap, e) for d in domains.values() for gap, e in (*d.plain, *d.drafting)]
    widths = grouped((e.drafted + 1, e.verify_ms / unit) for unit, _, e in each)
    rests = grouped(
        (e.drafted > 0, (gap - e.verify_ms - (e.draft_ms if e.drafted else 0.0)) / unit)
        for unit, gap, e in each
    )
    often = {width: times for width, times in sorted(widths.items()) if len(times) >= _FEW}
    v = {width: statistics.median(times) for width, times in often.items()}
    o, plain_o = (max(0.0, statistics.median(rests[drafts])) for drafts in (True, False))
    found = {}
    for name, d in domains.items():
        step, unit = d.step_ms, d.unit_ms
        first = statistics.median(e.draft_ms - step * e.drafted for _, e in d.firsts)
        found[name] = RoundCosts(unit, step / unit, v, o, plain_o, max(0.0, first), len(d.drafting))
    return found


def _rounds(run: BenchRun) -> Iterator[_Round]:
    for before, emission in pairwise(run.emissions):
        yield emission.t_ms - before.t_ms, emission


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The formula's results for one domain. The names of the fields are keys of ``bench.json``."""

    alpha: float  # probability that a draft is accepted if those before it were
    best_drafts: int  # the best fixed number of drafts at these costs
    best_tokens_a_round: float  # with that number of drafts
    best_speedup: float
    as_run: float  # speedup of the rounds as they ran: tokens committed / their cost by c, v and o
    measured: float | None  # measured ratio of decode speeds with and without speculation


def ceiling_of(costs: RoundCosts, runs: Sequence[BenchRun], measured: float | None) -> Ceiling | None:
    """Apply the formula to one domain's runs; None if nothing was drafted there.

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
    most = max(8, max(costs.v) - 1)  # for more drafts, v would be extrapolated
    v = partial(pass_cost, costs.v)
    drafts, speedup = best_speedup(alpha, costs.c, v, costs.o, most=most)
    spent = sum(
        costs.c * e.drafted + v(e.drafted + 1) + (costs.o if e.drafted else costs.plain_o)
        for e in rounds
    )
    as_run = sum(emission.tokens for emission in rounds) / spent if spent else 1.0
    tokens = expected_tokens(alpha, drafts)
    return Ceiling(alpha, drafts, tokens, speedup, as_run, measured)
