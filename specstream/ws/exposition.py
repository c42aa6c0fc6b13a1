"""Metrics as Prometheus text or OpenMetrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Literal

__all__ = ["OPEN_METRICS", "PLAIN_TEXT", "Family", "Histogram", "exposition", "format_for"]

OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PLAIN_TEXT = "text/plain; version=0.0.4; charset=utf-8"
Family = tuple[str, Literal["counter", "gauge", "histogram"], str, list[tuple[str, float]]]
"""A metric family: its name, type, help, and the end of each sample's name with its value."""


class Histogram:
    """A histogram of durations in seconds; ``bounds`` are the upper bounds of its buckets."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Add one duration."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def samples(self) -> Iterator[tuple[str, float]]:
        """Yield the cumulative buckets, the sum and the count."""
        below = 0
        bounds = [*map(str, self._bounds), "+Inf"]
        for bound, count in zip(bounds, self._counts, strict=True):
            below += count
            yield f'_bucket{{le="{bound}"}}', below
        yield "_sum", round(self._sum, 6)
        yield "_count", below


def exposition(families: Iterable[Family], kind: str) -> str:
    """Return metric families as text; ``kind`` is `OPEN_METRICS` or `PLAIN_TEXT`.

    The formats differ in a counter's family name (without ``_total``, or with it) and the end mark.
    """
    lines: list[str] = []
    for name, type, help_, samples in families:
        suffix = "_total" if type == "counter" and kind == PLAIN_TEXT else ""
        lines.append(f"# HELP specstream_{name}{suffix} {help_}")
        lines.append(f"# TYPE specstream_{name}{suffix} {type}")
        lines += [f"specstream_{name}{sample} {value}" for sample, value in samples]
    if kind == OPEN_METRICS:
        lines.append("# EOF")
    return "\n".join(lines) + "\n"


def format_for(accept: str) -> str:
    """Choose by an ``Accept`` header: OpenMetrics if its weight is at least that of plain text."""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for entry in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in entry.split(";"))
        weight = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    weight = float(parameter[2:])
                except ValueError:
                    weight = 0.0
        if kind in weights:
            weights[kind] = max(weights[kind], weight)
    open_metrics, plain = weights.values()
    return OPEN_METRICS if open_metrics > 0 and open_metrics >= plain else PLAIN_TEXT
