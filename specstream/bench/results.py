"""All records of an experiment: speeds, ratios, equality of tokens, and the summary."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

from specstream.bench.aggregates import geometric_mean, grouped, middle_half, percentile
from specstream.bench.arms.base import label
from specstream.bench.figures import Figures
from specstream.bench.prompts import GRAMMAR_DOMAIN, known_first
from specstream.bench.records import Record

__all__ = ["PAIRS", "Results"]

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

    def middle_half(
        self, domains: Sequence[str], arm: str, other: str
    ) -> tuple[float, float] | None:
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
            "speculation_vs_own_median_of_prompts": self.mean_ratio(
                "auto", "own", self.median_ratio
            ),
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
