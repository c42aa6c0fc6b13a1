"""Counters of a server, and their page in Prometheus' format."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from specstream.realtime.wire import SAMPLE_RATE
from specstream.types import Chunk

__all__ = [
    "OPEN_METRICS",
    "PLAIN_TEXT",
    "Counters",
    "Family",
    "Histogram",
    "exposition",
    "format_for",
]

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


# Upper bounds of histogram buckets, in seconds.
_WAITS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_STATUSES = ("completed", "cancelled", "incomplete", "failed")


@dataclass(slots=True)
class Counters:
    """Totals since the start; ``sessions`` is how many are open now."""

    sessions: int = 0
    sessions_total: int = 0
    refused_total: int = 0
    responses: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    audio_samples: int = 0
    first_token: Histogram = field(default_factory=lambda: Histogram(_WAITS))
    first_audio: Histogram = field(default_factory=lambda: Histogram(_WAITS))
    chunk_gap: Histogram = field(default_factory=lambda: Histogram(_GAPS))

    def count_chunk(self, chunk: Chunk, since_start_s: float, gap_s: float | None) -> None:
        """Count what one round committed; ``gap_s``: time since the previous chunk, if there was one."""
        self.rounds += 1
        self.tokens += len(chunk.token_ids)
        self.drafted += chunk.drafted
        self.accepted += chunk.accepted
        if gap_s is None:
            self.first_token.observe(since_start_s)
        else:
            self.chunk_gap.observe(gap_s)

    def text(self, kind: str) -> str:
        """Return all metric families as text; ``kind``: see `exposition`."""
        return exposition(self._families(), kind)

    def _families(self) -> Iterator[Family]:
        def total(name: str, help_: str, value: float) -> Family:
            return name, "counter", help_, [("_total", value)]

        def times(name: str, help_: str, histogram: Histogram) -> Family:
            return f"{name}_seconds", "histogram", help_, list(histogram.samples())

        by_status: list[tuple[str, float]] = [
            (f'_total{{status="{status}"}}', self.responses[status]) for status in _STATUSES
        ]
        seconds = round(self.audio_samples / SAMPLE_RATE, 3)
        refused, since = self.refused_total, "From response.create to the first"
        gap = "Between two chunks of a reply, as they reach its client's session."
        yield "open_sessions", "gauge", "Sessions that are open now.", [("", self.sessions)]
        yield total("sessions", "Sessions opened.", self.sessions_total)
        yield total("refused", "Connections refused: key, name, origin, places.", refused)
        yield "responses", "counter", "Responses ended, by status.", by_status
        yield total("tokens", "Tokens committed.", self.tokens)
        yield total("rounds", "Rounds of propose and verify.", self.rounds)
        yield total("drafted_tokens", "Tokens proposed.", self.drafted)
        yield total("accepted_tokens", "Proposed tokens that the target accepted.", self.accepted)
        yield total("audio_seconds", "Seconds of audio sent.", seconds)
        yield times("time_to_first_token", f"{since} token.", self.first_token)
        yield times("time_to_first_audio", f"{since} audible sample.", self.first_audio)
        yield times("chunk_gap", gap, self.chunk_gap)
