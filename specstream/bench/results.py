"""All records of an experiment: speeds, ratios, equality of tokens, and the summary."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from specstream.bench.arms.base import label
from specstream.bench.prompts import GRAMMAR_DOMAIN, known_first
from specstream.bench.records import BenchRun, Record, geometric_mean, grouped, middle_half, percentile

__all__ = ["PAIRS", "Figures", "Results"]

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
            name: {"p50": percentile(ms, 0.5), "p95": percentile(ms, 0.95)} for name, ms in waits.items()
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


def _predicted(runs: Sequence[BenchRun]) -> float | None:
    """The speedup that the arm predicted, as a ratio of sums like the measured speedups.

    A mean of the runs' ratios would be larger.
    """
    told = [(run.decode_tokens, run.predicted_speedup) for run in runs if run.predicted_speedup]
    time = sum(tokens / speedup for tokens, speedup in told)
    return sum(tokens for tokens, _ in told) / time if time > 0 else None


def _by_position(runs: Sequence[BenchRun]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    reached: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for emission in (e for run in runs for e in run.emissions):
        reached.update(range(min(emission.accepted + 1, emission.drafted)))
        accepted.update(range(min(emission.accepted, emission.drafted)))
    places = range(len(reached))
    return tuple(accepted[i] / reached[i] for i in places), tuple(reached[i] for i in places)


RatioOf = Callable[[str, str, str], float | None]  # of a domain and two arms
PAIRS = (
    ("auto", "own"),
    ("own", "generate"),
    ("auto", "generate"),
    ("auto", "assisted"),
    ("auto", "lookup"),
    ("auto", "llama.cpp"),
    ("own", "llama.cpp"),
    ("assisted", "generate"),
    ("lookup", "generate"),
)
"""Arms that are compared with each other."""


class Results:
    """Records by domain, arm and setting. The fastest setting in a domain represents its arm there.

    ``sampled`` replies are drawn with independent noise in each arm, so their tokens aren't compared.
    """

    def __init__(self, records: Iterable[Record], *, sampled: bool = False) -> None:
        self.records = list(records)
        self.sampled = sampled

    @cached_property
    def _groups(self) -> dict[tuple[str, str, str], list[Record]]:
        return grouped(((r.domain, r.arm, r.setting), r) for r in self.records)

    @cached_property
    def figures(self) -> dict[tuple[str, str, str], Figures]:
        """Figures by (domain, arm, setting)."""
        return {key: Figures(records) for key, records in self._groups.items()}

    @cached_property
    def domains(self) -> list[str]:
        """The measured domains: the known ones first."""
        return known_first(record.domain for record in self.records)

    @property
    def mean_domains(self) -> list[str]:
        """The domains that means cover: all but the grammar's, or the grammar's if it is alone."""
        return [d for d in self.domains if d != GRAMMAR_DOMAIN] or self.domains

    @cached_property
    def arms(self) -> list[tuple[str, str]]:
        """(arm, setting) pairs, in the order of their first run."""
        return list(dict.fromkeys((record.arm, record.setting) for record in self.records))

    def settings(self, arm: str) -> list[str]:
        """The settings of an arm."""
        return [setting for name, setting in self.arms if name == arm]

    def runs(self, domain: str, arm: str, setting: str = "") -> list[Record]:
        """The records of one arm and setting in a domain."""
        return self._groups.get((domain, arm, setting), [])

    def best(self, domain: str, arm: str) -> tuple[str, Figures] | None:
        """The setting that decodes fastest in a domain, and its figures; None if the arm has none."""
        found = [
            (setting, figures)
            for (where, name, setting), figures in self.figures.items()
            if (where, name) == (domain, arm)
        ]
        return max(found, key=lambda pair: pair[1].decode_tokens_per_second, default=None)

    def speed(self, domain: str, arm: str) -> float | None:
        """Tokens a second in the decode phase, at the best setting; None if there is no figure."""
        best = self.best(domain, arm)
        return best[1].decode_tokens_per_second or None if best else None

    def ratio(self, domain: str, arm: str, other: str) -> float | None:
        """How many times as fast ``arm`` decodes as ``other``; None if either has no figure."""
        a, b = self.speed(domain, arm), self.speed(domain, other)
        return a / b if a and b else None

    def ratios(self, arm: str, other: str) -> dict[str, float]:
        """`ratio` by domain; domains without a ratio are left out."""
        found = {domain: self.ratio(domain, arm, other) for domain in self.domains}
        return {domain: ratio for domain, ratio in found.items() if ratio is not None}

    def mean_ratio(self, arm: str, other: str, ratio: RatioOf | None = None) -> float | None:
        """Geometric mean of ``ratio`` (default: `ratio`) over `mean_domains`."""
        of = ratio or self.ratio
        return geometric_mean(of(domain, arm, other) for domain in self.mean_domains)

    def end_to_end_ratio(self, domain: str, arm: str, other: str) -> float | None:
        """`ratio` over whole requests, each arm at the setting that decodes fastest."""
        a, b = self.best(domain, arm), self.best(domain, other)
        if a is None or b is None or not b[1].tokens_per_second:
            return None
        return a[1].tokens_per_second / b[1].tokens_per_second

    def prompt_speeds(self, domain: str, arm: str) -> dict[str, float]:
        """Tokens a second in the decode phase, by prompt."""
        best = self.best(domain, arm)
        records = self.runs(domain, arm, best[0]) if best else []
        by_prompt = grouped((record.prompt, record) for record in records)
        speeds = {p: Figures(found).decode_tokens_per_second for p, found in by_prompt.items()}
        return {prompt: speed for prompt, speed in speeds.items() if speed > 0}

    def prompt_ratios(self, domain: str, arm: str, other: str) -> list[float]:
        """`ratio` of each prompt that both arms answered."""
        a, b = self.prompt_speeds(domain, arm), self.prompt_speeds(domain, other)
        return [a[prompt] / b[prompt] for prompt in a if prompt in b]

    def median_ratio(self, domain: str, arm: str, other: str) -> float | None:
        """Median of `prompt_ratios`."""
        ratios = self.prompt_ratios(domain, arm, other)
        return statistics.median(ratios) if ratios else None

    def middle_half(self, domains: Sequence[str], arm: str, other: str) -> tuple[float, float] | None:
        """Quartiles of the prompts' ratios; None with fewer than two prompts."""
        return middle_half([r for d in domains for r in self.prompt_ratios(d, arm, other)])

    def prompt_count(self, domains: Sequence[str]) -> int:
        """The number of different prompts in these domains."""
        return len({(r.domain, r.prompt) for r in self.records if r.domain in domains})

    def faster_peer(self, domain: str) -> str | None:
        """The faster of ``"assisted"`` and ``"lookup"`` in a domain; None if neither has a figure."""
        speeds = {peer: self.speed(domain, peer) or 0.0 for peer in ("assisted", "lookup")}
        best = max(speeds, key=speeds.__getitem__)
        return best if speeds[best] else None

    def equality(self, domain: str, arm: str, setting: str, other: str) -> dict[str, Any] | None:
        """Count the prompts whose tokens equal those of ``other`` in every repeat, as JSON data.

        ``first_divergence`` gives the index of the first different token by prompt. None if nothing can
        be compared.
        """
        if self.sampled or arm == other:
            return None
        theirs = {(r.prompt, r.repeat): r.run.token_ids for r in self.runs(domain, other)}
        compared: set[str] = set()
        diverged: dict[str, int] = {}
        for record in self.runs(domain, arm, setting):
            there = theirs.get((record.prompt, record.repeat))
            if there is None:
                continue
            compared.add(record.prompt)
            at = _first_difference(record.run.token_ids, there)
            if at is not None:
                diverged[record.prompt] = min(at, diverged.get(record.prompt, at))
        if not compared:
            return None
        identical = len(compared) - len(diverged)
        return {"prompts": len(compared), "identical": identical,
                "share": identical / len(compared), "first_divergence": diverged}  # fmt: skip

    def summary(self) -> dict[str, float | None]:
        """Ratios of decode speeds; None where an arm is missing.

        All are geometric means over `mean_domains`, except ``worst_domain_vs_own``: the lowest ratio of
        any domain. ``best_peer`` is the faster of assisted generation and prompt lookup in each domain.
        """
        peers = {domain: self.faster_peer(domain) for domain in self.mean_domains}
        return {
            "ar_vs_generate": self.mean_ratio("own", "generate"),
            "speculation_vs_own": self.mean_ratio("auto", "own"),
            "speculation_vs_assisted": self.mean_ratio("auto", "assisted"),
            "speculation_vs_best_peer": geometric_mean(
                self.ratio(domain, "auto", peer) for domain, peer in peers.items() if peer
            ),
            "worst_domain_vs_own": min(self.ratios("auto", "own").values(), default=None),
            "speculation_vs_generate": self.mean_ratio("auto", "generate"),
            "speculation_vs_lookup": self.mean_ratio("auto", "lookup"),
            "speculation_vs_llama_cpp": self.mean_ratio("auto", "llama.cpp"),
            "ar_vs_llama_cpp": self.mean_ratio("own", "llama.cpp"),
            "speculation_vs_own_end_to_end": self.mean_ratio("auto", "own", self.end_to_end_ratio),
            "speculation_vs_own_median_of_prompts": self.mean_ratio("auto", "own", self.median_ratio),
        }

    def figures_by_domain(self) -> dict[str, Any]:
        """Every figure by domain and arm, as JSON data."""
        found: dict[str, Any] = {domain: {} for domain in self.domains}
        for domain in self.domains:
            for arm, setting in self.arms:
                figures, best = self.figures.get((domain, arm, setting)), self.best(domain, arm)
                if figures is None or best is None:
                    continue
                row = {"arm": arm, "setting": setting, "best_setting": best[0] == setting}
                for other in ("own", "generate"):
                    row[f"same_tokens_as_{other}"] = self.equality(domain, arm, setting, other)
                found[domain][label(arm, setting)] = vars(figures) | row
        return found

    def ratios_by_domain(self) -> dict[str, Any]:
        """Speed ratios of the arms in `PAIRS`, as JSON data."""
        found: dict[str, Any] = {domain: {} for domain in self.domains}
        for arm, other in PAIRS:
            for domain, decode in self.ratios(arm, other).items():
                by_prompt = self.prompt_ratios(domain, arm, other)
                half = middle_half(by_prompt) or (None, None)
                found[domain][f"{arm} / {other}"] = {
                    "prompts": len(by_prompt),
                    "decode": decode,
                    "decode_median_of_prompts": self.median_ratio(domain, arm, other),
                    "decode_p10_of_prompts": percentile(by_prompt, 0.1),
                    "decode_p25_of_prompts": half[0],
                    "decode_p75_of_prompts": half[1],
                    "decode_p90_of_prompts": percentile(by_prompt, 0.9),
                    "end_to_end": self.end_to_end_ratio(domain, arm, other),
                }
        return found


def _first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first token that differs or that only one of them has; None if equal."""
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))
