"""Figures computed from records, for each arm, setting and domain."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from specstream.bench.records import Record, Run

__all__ = ["Figures", "geometric_mean", "percentile", "rounded"]

T = TypeVar("T", int, float)


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
    """Geometric mean of the values above 0; None if there are none."""
    present = [value for value in values if value is not None and value > 0]
    return statistics.geometric_mean(present) if present else None


class Figures:
    """The figures of one arm at one setting in one domain, from at least one record.

    The decode phase is a reply's tokens after the first emission, and the time from the first emission
    to the last. Sums run over all replies, so long replies weigh more.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        runs = [record.run for record in records]
        self.prompts = len({record.prompt for record in records})  # different ones
        self.runs = len(runs)
        self.tokens = sum(len(run.token_ids) for run in runs)
        self.decode_tokens = sum(run.decode_tokens for run in runs)
        self.total_s = sum(run.total_ms for run in runs) / 1e3
        decode_s = sum(run.decode_ms for run in runs) / 1e3
        # Tokens a second, in the decode phase and end to end; 0 if the phase took no time.
        self.decode_tokens_per_second = self.decode_tokens / decode_s if decode_s > 0 else 0.0
        self.tokens_per_second = self.tokens / self.total_s if self.total_s > 0 else 0.0
        waits = {
            "ttft": [run.ttft_ms for run in runs],
            "total": [run.total_ms for run in runs],
            "gap": [gap for run in runs for gap in run.gaps_ms],
        }
        self.ms = {name: (percentile(ms, 0.5), percentile(ms, 0.95)) for name, ms in waits.items()}
        self.rounds = sum(len(run.emissions) for run in runs)  # passes of the target
        # Drafted, accepted and rejected tokens; None where the arm doesn't report drafts.
        self.accepted = sum(run.accepted for run in runs)
        told = all(run.tells for run in runs)
        self.drafted = sum(run.drafted for run in runs) if told else None
        self.rejected = None if self.drafted is None else self.drafted - self.accepted
        self.acceptance_rate = self.accepted / self.drafted if self.drafted else None
        self.mean_acceptance_length = 1 + self.accepted / self.rounds if self.rounds else 0.0
        # Acceptance of draft i + 1 in the rounds whose first i drafts were accepted, and their number.
        self.acceptance_by_position, self.reached_by_position = _by_position(runs)
        spent = _summed(run.spent_ms for run in runs)
        whole = sum(spent.values())
        self.spent = {name: ms / whole for name, ms in spent.items()} if whole > 0 else {}  # shares
        self.predicted_speedup = _predicted(runs)
        self.proposer_rounds = _summed(run.proposer_rounds for run in runs)
        self.explanation = runs[-1].explanation

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
                name: {"p50": rounded(p50), "p95": rounded(p95)}
                for name, (p50, p95) in self.ms.items()
            },
            "rounds": self.rounds,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "rejected": self.rejected,
            "acceptance_rate": rounded(self.acceptance_rate),
            "mean_acceptance_length": rounded(self.mean_acceptance_length),
            "acceptance_by_position": [rounded(rate) for rate in self.acceptance_by_position],
            "reached_by_position": list(self.reached_by_position),
            "time_split": {name: rounded(share) for name, share in self.spent.items()},
            "predicted_speedup": rounded(self.predicted_speedup),
            "proposer_rounds": self.proposer_rounds,
            "explanation": self.explanation,
        }


def rounded(value: float | None) -> float | None:
    """Round to four decimal places; None for None and NaN."""
    return None if value is None or math.isnan(value) else round(value, 4)


def _summed(parts: Iterable[Mapping[str, T]]) -> dict[str, T]:
    """The sum of each key over all mappings."""
    found: Counter[str] = Counter()
    for part in parts:
        found.update(part)
    return dict(found)


def _predicted(runs: Sequence[Run]) -> float | None:
    """The speedup that the arm predicted, as a ratio of sums like the measured speedups.

    A mean of the runs' ratios would be larger.
    """
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
