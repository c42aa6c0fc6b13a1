"""From records to figures: one row for each arm, setting and domain."""

from __future__ import annotations

import math
import statistics
from collections import Counter
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
    """Of the values above 0, ignoring None; None if there are none."""
    present = [value for value in values if value is not None and value > 0]
    return statistics.geometric_mean(present) if present else None


@dataclass(frozen=True, slots=True)
class Figures:
    """What one arm, at one setting, did in one domain.

    The decode phase is a reply's tokens after the first emission, and the time from the first emission
    to the last. Sums run over all replies, so long replies weigh more.

    Attributes:
        prompts: Different prompts.
        runs: Replies.
        tokens: Tokens of all replies.
        decode_tokens: Tokens of the decode phases.
        decode_s: Seconds of the decode phases.
        total_s: Seconds from request to end.
        drafted: None where the arm doesn't report drafts.
        accepted: Tokens beyond one for each pass of the target.
        rounds: Emissions: one for each pass of the target.
        acceptance_by_position: Acceptance of draft i + 1 in rounds whose first i drafts were accepted.
        reached_by_position: Number of such rounds.
        ms: Latencies: name → p50 and p95 in milliseconds.
        spent: Shares of the whole time by part; empty where the arm doesn't report them.
        predicted_speedup: Speedup that the arm predicted, over the sums of all replies.
        proposer_rounds: Number of rounds by proposer.
        explanation: The arm's explanation of its drafting in the last reply.
    """

    prompts: int
    runs: int
    tokens: int
    decode_tokens: int
    decode_s: float
    total_s: float
    drafted: int | None
    accepted: int
    rounds: int
    acceptance_by_position: tuple[float, ...]
    reached_by_position: tuple[int, ...]
    ms: dict[str, tuple[float, float]]
    spent: dict[str, float]
    predicted_speedup: float | None
    proposer_rounds: dict[str, int]
    explanation: str

    @property
    def rejected(self) -> int | None:
        """Drafted tokens that were not kept; None where the arm doesn't report drafts."""
        return None if self.drafted is None else self.drafted - self.accepted

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
        """Accepted ÷ drafted; None where nothing was drafted or drafts aren't reported."""
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
                name: {"p50": _rounded(p50), "p95": _rounded(p95)}
                for name, (p50, p95) in self.ms.items()
            },
            "rounds": self.rounds,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "rejected": self.rejected,
            "acceptance_rate": _rounded(self.acceptance_rate),
            "mean_acceptance_length": round(self.mean_acceptance_length, 4),
            "acceptance_by_position": [round(a, 4) for a in self.acceptance_by_position],
            "reached_by_position": list(self.reached_by_position),
            "time_split": {name: round(share, 4) for name, share in self.spent.items()},
            "predicted_speedup": _rounded(self.predicted_speedup),
            "proposer_rounds": self.proposer_rounds,
            "explanation": self.explanation,
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else round(value, 4)


def figures_of(records: Sequence[Record]) -> Figures:
    """The figures of the records of one arm, setting and domain (at least one)."""
    runs = [record.run for record in records]
    by_position, reached = _by_position(runs)
    spent: Counter[str] = Counter()
    rounds: Counter[str] = Counter()
    for run in runs:
        spent.update(run.spent_ms)
        rounds.update(run.proposer_rounds)
    whole = sum(spent.values())
    waits = {
        "ttft": [run.ttft_ms for run in runs],
        "total": [run.total_ms for run in runs],
        "gap": [gap for run in runs for gap in run.gaps_ms],
    }
    return Figures(
        prompts=len({record.prompt for record in records}),
        runs=len(runs),
        tokens=sum(len(run.token_ids) for run in runs),
        decode_tokens=sum(run.decode_tokens for run in runs),
        decode_s=sum(run.decode_ms for run in runs) / 1e3,
        total_s=sum(run.total_ms for run in runs) / 1e3,
        drafted=sum(run.drafted for run in runs) if all(run.tells for run in runs) else None,
        accepted=sum(run.accepted for run in runs),
        rounds=sum(len(run.emissions) for run in runs),
        acceptance_by_position=by_position,
        reached_by_position=reached,
        ms={name: (percentile(ms, 0.5), percentile(ms, 0.95)) for name, ms in waits.items()},
        spent={name: ms / whole for name, ms in spent.items()} if whole > 0 else {},
        predicted_speedup=_predicted(runs),
        proposer_rounds=dict(rounds),
        explanation=runs[-1].explanation,
    )


def _predicted(runs: Sequence[Run]) -> float | None:
    """A ratio of sums, as the measured speedups are; a mean of ratios would be larger."""
    told = [(run.decode_tokens, run.predicted_speedup) for run in runs if run.predicted_speedup]
    time = sum(tokens / speedup for tokens, speedup in told)
    return sum(tokens for tokens, _ in told) / time if time > 0 else None


def _by_position(runs: Sequence[Run]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    reached: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for emission in (e for run in runs for e in run.emissions):
        reached.update(range(min(emission.accepted + 1, emission.drafted)))
        accepted.update(range(min(emission.accepted, emission.drafted)))
    places = range(len(reached))
    return tuple(accepted[i] / reached[i] for i in places), tuple(reached[i] for i in places)
