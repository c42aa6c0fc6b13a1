"""Measurements: one record for every reply of an arm, and medians of many."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from itertools import pairwise
from typing import Any, TypeVar

__all__ = [
    "BenchRun",
    "Emission",
    "Record",
    "geometric_mean",
    "grouped",
    "middle_half",
    "percentile",
    "rounded",
]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` (whole percents) of the values lie, interpolated; NaN if none."""
    if len(values) < 2:
        return values[0] if values else math.nan
    return statistics.quantiles(values, n=100, method="inclusive")[round(100 * share) - 1]


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, in order."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Geometric mean of the values above 0; None if there are none."""
    present = [value for value in values if value is not None and value > 0]
    return statistics.geometric_mean(present) if present else None


def middle_half(values: Sequence[float]) -> tuple[float, float] | None:
    """The first and the third quartile, interpolated; None for fewer than two values."""
    return (percentile(values, 0.25), percentile(values, 0.75)) if len(values) > 1 else None


def rounded(value: Any) -> Any:
    """JSON data with its fractions rounded to four decimal places, and None for NaN."""
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, 4)
    if isinstance(value, Mapping):
        return {str(key): rounded(part) for key, part in value.items()}
    return [rounded(part) for part in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True, slots=True)
class Emission:
    """Tokens that were emitted together. Drafting figures are 0 where the arm doesn't report them."""

    t_ms: float  # since the request
    tokens: int
    drafted: int = 0  # tokens that were proposed in the round
    accepted: int = 0  # drafted tokens that are part of ``tokens``
    draft_ms: float = 0.0
    verify_ms: float = 0.0  # of the target pass


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One reply."""

    token_ids: tuple[int, ...]  # its end-of-sequence token included
    emissions: tuple[Emission, ...]  # in order; their tokens add up to ``token_ids``
    total_ms: float  # from the request (text in) to the end
    finish: str  # "stop" or "length"
    tells: bool = False  # whether the arm reports drafts and where its time went
    spent_ms: Mapping[str, float] = field(default_factory=dict)  # by part of the work, as "draft"
    predicted_speedup: float | None = None  # over plain decoding, as the arm itself predicted
    explanation: str = ""  # why the arm drafted as it did
    proposer_rounds: Mapping[str, int] = field(default_factory=dict)  # rounds by proposer

    @property
    def ttft_ms(self) -> float:
        """Time to the first token."""
        return self.emissions[0].t_ms if self.emissions else self.total_ms

    @property
    def decode_tokens(self) -> int:
        """Tokens after the first emission."""
        return sum(emission.tokens for emission in self.emissions[1:])

    @property
    def decode_ms(self) -> float:
        """From the first emission to the last."""
        return self.emissions[-1].t_ms - self.emissions[0].t_ms if self.emissions else 0.0

    @property
    def gaps_ms(self) -> list[float]:
        """Times between emissions."""
        return [b.t_ms - a.t_ms for a, b in pairwise(self.emissions)]

    @property
    def drafted(self) -> int:
        """Tokens proposed."""
        return sum(emission.drafted for emission in self.emissions)

    @property
    def accepted(self) -> int:
        """Drafted tokens that were kept."""
        return sum(emission.accepted for emission in self.emissions)


@dataclass(frozen=True, slots=True)
class Record:
    """One run; ``arm`` is the family (``"assisted"``), ``place`` the arm's position in its cell."""

    domain: str
    prompt: str
    arm: str
    setting: str
    repeat: int
    place: int
    run: BenchRun

    def to_dict(self) -> dict[str, Any]:
        """As JSON data: one line of ``runs.jsonl``."""
        run = self.run
        where = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "run"}
        return where | {
            "token_ids": list(run.token_ids),
            "finish": run.finish,
            "ttft_ms": round(run.ttft_ms, 3),
            "total_ms": round(run.total_ms, 3),
            "emissions": [[round(value, 3) for value in astuple(e)] for e in run.emissions],
            "spent_ms": {name: round(ms, 3) for name, ms in run.spent_ms.items()},
            "predicted_speedup": run.predicted_speedup,
            "proposer_rounds": dict(run.proposer_rounds),
        }
