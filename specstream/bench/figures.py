"""From records to figures: one row for each arm, setting and domain."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from specstream.bench.records import Record, Run

__all__ = ["Figures", "figures_of", "geometric_mean", "percentile"]


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the values lie, interpolated; NaN if there are none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of the values that are there and above 0; None if there are none."""
    there = [value for value in values if value is not None and value > 0]
    return statistics.geometric_mean(there) if there else None


@dataclass(frozen=True, slots=True)
class Figures:
    """What one arm, at one setting, did in one domain.

    Decode figures are over the decode phase: the tokens after a reply's first emission, and the
    time from its first emission to its last. Sums run over all replies, so long ones weigh more.

    Attributes:
        prompts: Different prompts.
        runs: Replies.
        tokens: Tokens of all replies.
        decode_tokens: Those after the first emission.
        decode_s: Seconds of the decode phases.
        total_s: Seconds from request to end.
        drafted: None where the arm doesn't tell.
        rejected: None where the arm doesn't tell.
        rounds: Emissions: one for each pass of the target.
        accepted: Tokens that came beyond one for each pass.
        acceptance_by_position: Of the rounds whose first i drafts stood and that drafted further,
            the share in which draft i + 1 stood too.
        reached_by_position: How many such rounds there were.
        ms: Latencies: name → p50 and p95 in milliseconds.
        spent: Shares of the whole time by part; empty where the arm doesn't tell.
        predicted_speedup: What the arm itself expected, of all tokens: were each reply as much faster
            than plain decoding as it said, all would be by so much.
        proposer_rounds: Rounds by who proposed.
        explanation: What the arm said last about its drafting.
    """

    prompts: int
    runs: int
    tokens: int
    decode_tokens: int
    decode_s: float
    total_s: float
    drafted: int | None
    accepted: int
    rejected: int | None
    rounds: int
    acceptance_by_position: tuple[float, ...]
    reached_by_position: tuple[int, ...]
    ms: dict[str, tuple[float, float]]
    spent: dict[str, float]
    predicted_speedup: float | None
    proposer_rounds: dict[str, int]
    explanation: str

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens a second in the decode phase; 0 if no reply had one."""
        return self.decode_tokens / self.decode_s if self.decode_s > 0 else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second end to end."""
        return self.tokens / self.total_s if self.total_s > 0 else 0.0

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted ÷ drafted; None where nothing was drafted or the arm doesn't tell."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted ÷ rounds: tokens for each pass of the target."""
        return 1 + self.accepted / self.rounds if self.rounds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "prompts": self.prompts,
            "runs": self.runs,
            "tokens": self.tokens,
            "decode_tokens": self.decode_tokens,
            "decode_tokens_per_second": round(self.decode_tokens_per_second, 2),
            "tokens_per_second": round(self.tokens_per_second, 2),
            "ms": {
                name: {"p50": _number(p50), "p95": _number(p95)}
                for name, (p50, p95) in self.ms.items()
            },
            "rounds": self.rounds,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "rejected": self.rejected,
            "acceptance_rate": _number(self.acceptance_rate),
            "mean_acceptance_length": round(self.mean_acceptance_length, 4),
            "acceptance_by_position": [round(a, 4) for a in self.acceptance_by_position],
            "reached_by_position": list(self.reached_by_position),
            "time_split": {name: round(share, 4) for name, share in self.spent.items()},
            "predicted_speedup": _number(self.predicted_speedup),
            "proposer_rounds": self.proposer_rounds,
            "explanation": self.explanation,
        }


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else round(value, 4)


def _predicted(runs: Sequence[Run]) -> float | None:
    """Of sums, as the rates are that it stands beside: a mean of ratios would be larger."""
    told = [(run.decode_tokens, run.predicted_speedup) for run in runs if run.predicted_speedup]
    time = sum(tokens / speedup for tokens, speedup in told)
    return sum(tokens for tokens, _ in told) / time if time > 0 else None


def figures_of(records: Sequence[Record]) -> Figures:
    """The figures of the records of one arm, setting and domain (at least one)."""
    runs = [record.run for record in records]
    tells = all(run.tells for run in runs)
    by_position, reached = _by_position(records)
    drafted, accepted = sum(run.drafted for run in runs), sum(run.accepted for run in runs)
    return Figures(
        prompts=len({record.prompt for record in records}),
        runs=len(runs),
        tokens=sum(len(run.token_ids) for run in runs),
        decode_tokens=sum(run.decode_tokens for run in runs),
        decode_s=sum(run.decode_ms for run in runs) / 1e3,
        total_s=sum(run.total_ms for run in runs) / 1e3,
        drafted=drafted if tells else None,
        accepted=accepted,
        rejected=drafted - accepted if tells else None,
        rounds=sum(len(run.emissions) for run in runs),
        acceptance_by_position=by_position,
        reached_by_position=reached,
        ms={
            "ttft": _ends([run.ttft_ms for run in runs]),
            "total": _ends([run.total_ms for run in runs]),
            "gap": _ends([gap for run in runs for gap in run.gaps_ms]),
        },
        spent=_shares(records),
        predicted_speedup=_predicted(runs),
        proposer_rounds=_added([run.proposer_rounds for run in runs]),
        explanation=runs[-1].explanation,
    )


def _ends(values: list[float]) -> tuple[float, float]:
    return percentile(values, 0.5), percentile(values, 0.95)


def _by_position(records: Sequence[Record]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    reached: list[int] = []
    stood: list[int] = []
    for record in records:
        for emission in record.run.emissions:
            for position in range(min(emission.accepted + 1, emission.drafted)):
                while len(reached) <= position:
                    reached.append(0)
                    stood.append(0)
                reached[position] += 1
                stood[position] += position < emission.accepted
    return tuple(a / b for a, b in zip(stood, reached, strict=True)), tuple(reached)


def _shares(records: Sequence[Record]) -> dict[str, float]:
    total: dict[str, float] = {}
    for record in records:
        for name, ms in record.run.spent_ms.items():
            total[name] = total.get(name, 0.0) + ms
    whole = sum(total.values())
    return {name: ms / whole for name, ms in total.items()} if whole > 0 else {}


def _added(counts: Sequence[Any]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            total[name] = total.get(name, 0) + count
    return total
