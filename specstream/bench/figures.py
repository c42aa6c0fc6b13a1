"""Figures computed from records, for each arm, setting and domain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from specstream.bench.aggregates import percentile
from specstream.bench.records import Record, Run

__all__ = ["Figures"]

T = TypeVar("T", int, float)


class Figures:
    """The figures of one arm at one setting in one domain, from at least one record.

    The names of the attributes are keys of ``bench.json``.

    The decode phase is a reply's tokens after the first emission, and the time from the first emission
    to the last. Sums run over all replies, so long replies weigh more.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        runs = [record.run for record in records]
        self.prompts = len({record.prompt for record in records})  # different ones
        self.runs = len(runs)
        self.tokens = sum(len(run.token_ids) for run in runs)
        self.decode_tokens = sum(run.decode_tokens for run in runs)
        decode_s = sum(run.decode_ms for run in runs) / 1e3
        total_s = sum(run.total_ms for run in runs) / 1e3
        # Tokens a second, in the decode phase and end to end; 0 if the phase took no time.
        self.decode_tokens_per_second = self.decode_tokens / decode_s if decode_s > 0 else 0.0
        self.tokens_per_second = self.tokens / total_s if total_s > 0 else 0.0
        waits = {
            "ttft": [run.ttft_ms for run in runs],
            "total": [run.total_ms for run in runs],
            "gap": [gap for run in runs for gap in run.gaps_ms],
        }
        self.ms = {
            name: {"p50": percentile(ms, 0.5), "p95": percentile(ms, 0.95)}
            for name, ms in waits.items()
        }
        self.rounds = sum(len(run.emissions) for run in runs)  # passes of the target
        # Drafted, accepted and rejected tokens; None where the arm doesn't report drafts.
        told = all(run.tells for run in runs)
        self.drafted = sum(run.drafted for run in runs) if told else None
        self.accepted = sum(run.accepted for run in runs)
        self.rejected = None if self.drafted is None else self.drafted - self.accepted
        self.acceptance_rate = self.accepted / self.drafted if self.drafted else None
        self.mean_acceptance_length = 1 + self.accepted / self.rounds if self.rounds else 0.0
        # Acceptance of draft i + 1 in the rounds whose first i drafts were accepted, and their number.
        self.acceptance_by_position, self.reached_by_position = _by_position(runs)
        spent = _summed(run.spent_ms for run in runs)
        whole = sum(spent.values())
        # Shares of the whole time by part of the work.
        self.time_split = {name: ms / whole for name, ms in spent.items()} if whole > 0 else {}
        self.predicted_speedup = _predicted(runs)
        self.proposer_rounds = _summed(run.proposer_rounds for run in runs)
        self.explanation = runs[-1].explanation


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
