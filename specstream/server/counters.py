"""Counters of a server, as metric families for Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from specstream.realtime.wire import SAMPLE_RATE
from specstream.types import Chunk

__all__ = ["Counters", "Histogram"]


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

    def family(self, name: str, help_: str) -> Metric:
        """The histogram as a metric family."""
        below, buckets = 0, list[tuple[str, float]]()
        for bound, count in zip([*map(str, self._bounds), "+Inf"], self._counts, strict=True):
            below += count
            buckets.append((bound, below))
        return HistogramMetricFamily(name, help_, buckets=buckets, sum_value=round(self._sum, 6))


# Upper bounds of histogram buckets, in seconds.
_WAITS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_EARLY = ("used", "dropped", "failed")
_STATUSES = ("completed", "cancelled", "incomplete", "failed", "abandoned")


@dataclass(slots=True, eq=False)
class Counters:
    """Totals since the start; ``sessions`` is how many are open now.

    ``requests`` of the HTTP API are counted by route and status. ``drafts`` are rounds with a proposal,
    ``accepted_at[i]`` those whose proposal survived past position i. What vLLM counts, too, has its
    suffix: ``specstream:spec_decode_num_drafts_total`` and so on.
    """

    sessions: int = 0
    sessions_total: int = 0
    refused_total: int = 0
    responses: Counter[str] = field(default_factory=Counter)
    early: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    audio_samples: int = 0
    first_token: Histogram = field(default_factory=lambda: Histogram(_WAITS))
    first_audio: Histogram = field(default_factory=lambda: Histogram(_WAITS))
    chunk_gap: Histogram = field(default_factory=lambda: Histogram(_GAPS))
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    drafts: int = 0
    accepted_at: list[int] = field(default_factory=list)
    registry: CollectorRegistry = field(default_factory=lambda: CollectorRegistry(auto_describe=False))

    def __post_init__(self) -> None:
        self.registry.register(self)

    def count_chunk(self, chunk: Chunk, since_start_s: float, gap_s: float | None) -> None:
        """Count what one round committed; ``gap_s``: time since the previous chunk, if there was one."""
        self.rounds += 1
        self.tokens += chunk.tokens.length
        self.drafted += chunk.drafted
        self.accepted += chunk.accepted
        self.drafts += chunk.drafted > 0
        self.accepted_at += [0] * (chunk.accepted - len(self.accepted_at))
        for position in range(chunk.accepted):
            self.accepted_at[position] += 1
        if gap_s is None:
            self.first_token.observe(since_start_s)
        else:
            self.chunk_gap.observe(gap_s)

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families; a registry calls this."""

        def total(name: str, help_: str, value: float) -> Metric:
            return CounterMetricFamily(f"specstream_{name}", help_, value=value)

        seconds = round(self.audio_samples / SAMPLE_RATE, 3)
        refused, since = self.refused_total, "From response.create to the first"
        gap = "Between two chunks of a reply, as they reach its client's session."
        yield GaugeMetricFamily(
            "specstream_open_sessions", "Sessions that are open now.", value=self.sessions
        )
        yield total("sessions", "Sessions opened.", self.sessions_total)
        yield total("refused", "Connections refused: key, name, origin, places.", refused)
        responses = CounterMetricFamily(
            "specstream_responses", "Responses ended, by status.", labels=["status"]
        )
        for status in _STATUSES:
            responses.add_metric([status], self.responses[status])
        yield responses
        early = CounterMetricFamily(
            "specstream_early_responses",
            "Responses begun before the user's turn was over, by what became of them.",
            labels=["outcome"],
        )
        for outcome in _EARLY:
            early.add_metric([outcome], self.early[outcome])
        yield early
        requests = CounterMetricFamily(
            "specstream_requests", "Requests of the HTTP API.", labels=["route", "status"]
        )
        for key, count in sorted(self.requests.items()):
            requests.add_metric(list(key), count)
        yield requests
        yield total("tokens", "Tokens committed; deltas where another server writes.", self.tokens)
        yield total("rounds", "Rounds of propose and verify.", self.rounds)
        yield total("drafted_tokens", "Tokens proposed.", self.drafted)
        yield total("accepted_tokens", "Proposed tokens that the target accepted.", self.accepted)
        yield total("audio_seconds", "Seconds of audio sent.", seconds)
        times = (
            ("time_to_first_token", f"{since} token.", self.first_token),
            ("time_to_first_audio", f"{since} audible sample.", self.first_audio),
            ("chunk_gap", gap, self.chunk_gap),
        )
        for name, help_, histogram in times:
            yield histogram.family(f"specstream_{name}_seconds", help_)
        yield from self._as_elsewhere()

    def _as_elsewhere(self) -> Iterator[Metric]:
        """The counters that vLLM has, under its names after the colon."""
        prefix = "specstream:spec_decode_num"
        for name, help_, value in (
            ("drafts", "Rounds with a proposal.", self.drafts),
            ("draft_tokens", "Tokens proposed.", self.drafted),
            ("accepted_tokens", "Proposed tokens that the target accepted.", self.accepted),
        ):
            yield CounterMetricFamily(f"{prefix}_{name}", help_, value=value)
        by_place = CounterMetricFamily(
            f"{prefix}_accepted_tokens_per_pos", "Accepted tokens by position.", labels=["position"]
        )
        for position, count in enumerate(self.accepted_at):
            by_place.add_metric([str(position)], count)
        yield by_place
