"""Groups, percentiles and means of measured values, and their rounding."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

__all__ = ["geometric_mean", "grouped", "middle_half", "percentile", "rounded"]

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
