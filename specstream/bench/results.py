"""All records of an experiment, and what can be asked of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from specstream.bench.figures import Figures, figures_of, percentile
from specstream.bench.prompts import GRAMMAR_DOMAIN, MEAN_DOMAINS
from specstream.bench.records import Record

__all__ = ["Equality", "Results", "middle_half"]


@dataclass(frozen=True, slots=True)
class Equality:
    """How many prompts got the same tokens from two arms, and where the others part.

    ``first_divergence`` are (prompt, index of the first token that differs).
    """

    prompts: int
    identical: int
    first_divergence: tuple[tuple[str, int], ...]

    @property
    def share(self) -> float | None:
        """Identical ÷ compared; None if nothing was compared."""
        return self.identical / self.prompts if self.prompts else None


class Results:
    """Records, grouped. Where an arm has several settings, its best one speaks for it.

    ``sampled`` replies are drawn with noise of each arm's own: their tokens aren't compared.
    """

    def __init__(self, records: Iterable[Record], *, sampled: bool = False) -> None:
        self.records = list(records)
        self.sampled = sampled

    @cached_property
    def _groups(self) -> dict[tuple[str, str, str], list[Record]]:
        groups: dict[tuple[str, str, str], list[Record]] = {}
        for record in self.records:
            groups.setdefault((record.domain, record.arm, record.setting), []).append(record)
        return groups

    @cached_property
    def figures(self) -> dict[tuple[str, str, str], Figures]:
        """By domain, arm and setting."""
        return {key: figures_of(records) for key, records in self._groups.items()}

    @cached_property
    def domains(self) -> list[str]:
        """The domains measured: the known ones first."""
        known = (*MEAN_DOMAINS, GRAMMAR_DOMAIN)
        found = dict.fromkeys(record.domain for record in self.records)
        return [d for d in known if d in found] + [d for d in found if d not in known]

    @property
    def mean_domains(self) -> list[str]:
        """The domains that the means are over: the usual four as far as they are there.

        Where none of those is, it is every domain but the one written by a grammar; else that one.
        """
        usual = [d for d in self.domains if d in MEAN_DOMAINS]
        others = [d for d in self.domains if d != GRAMMAR_DOMAIN]
        return usual or others or self.domains

    @cached_property
    def arms(self) -> list[tuple[str, str]]:
        """(arm, setting) pairs, in the order of their first run."""
        return list(dict.fromkeys((record.arm, record.setting) for record in self.records))

    def settings(self, arm: str) -> list[str]:
        """The settings of an arm."""
        return [setting for name, setting in self.arms if name == arm]

    def best(self, domain: str, arm: str) -> tuple[str, Figures] | None:
        """The setting that decodes fastest in a domain, and its figures; None without one."""
        found = [
            (setting, self.figures[domain, arm, setting])
            for setting in self.settings(arm)
            if (domain, arm, setting) in self.figures
        ]
        return max(found, key=lambda one: one[1].decode_tokens_per_second, default=None)

    def speed(self, domain: str, arm: str) -> float | None:
        """Tokens a second in the decode phase, at the arm's best setting there."""
        best = self.best(domain, arm)
        return best[1].decode_tokens_per_second or None if best else None

    def ratio(self, domain: str, arm: str, other: str) -> float | None:
        """How many times as fast ``arm`` decodes as ``other``; None if either has no figure."""
        a, b = self.speed(domain, arm), self.speed(domain, other)
        return a / b if a and b else None

    def end_to_end_ratio(self, domain: str, arm: str, other: str) -> float | None:
        """The same over whole requests, each arm at the setting that decodes fastest."""
        a, b = self.best(domain, arm), self.best(domain, other)
        if a is None or b is None or not b[1].tokens_per_second:
            return None
        return a[1].tokens_per_second / b[1].tokens_per_second

    def prompt_ratios(self, domain: str, arm: str, other: str) -> list[float]:
        """The decode ratio prompt by prompt, each arm at its best setting in the domain."""
        a, b = self.prompt_speeds(domain, arm), self.prompt_speeds(domain, other)
        return [a[prompt] / b[prompt] for prompt in a if prompt in b]

    def prompt_count(self, domains: Sequence[str]) -> int:
        """Different prompts of these domains."""
        return len({(r.domain, r.prompt) for r in self.records if r.domain in domains})

    def median_ratio(self, domain: str, arm: str, other: str) -> float | None:
        """Median over the prompts of their decode ratios."""
        ratios = self.prompt_ratios(domain, arm, other)
        return statistics.median(ratios) if ratios else None

    def middle_half(
        self, domains: Sequence[str], arm: str, other: str
    ) -> tuple[float, float] | None:
        """Quartiles over the prompts of their decode ratios; None with fewer than two prompts."""
        return middle_half([r for d in domains for r in self.prompt_ratios(d, arm, other)])

    def prompt_speeds(self, domain: str, arm: str) -> dict[str, float]:
        """Tokens a second in the decode phase by prompt, at the arm's best setting in the domain."""
        best = self.best(domain, arm)
        if best is None:
            return {}
        by_prompt: dict[str, list[Record]] = {}
        for record in self._groups[domain, arm, best[0]]:
            by_prompt.setdefault(record.prompt, []).append(record)
        speeds = {prompt: _speed(records) for prompt, records in by_prompt.items()}
        return {prompt: speed for prompt, speed in speeds.items() if speed > 0}

    def runs(self, domain: str, arm: str, setting: str = "") -> list[Record]:
        """The records of one arm and setting in a domain."""
        return self._groups.get((domain, arm, setting), [])

    def equality(self, domain: str, arm: str, setting: str, other: str) -> Equality:
        """Compare the tokens of each prompt's runs, repeat by repeat, with those of ``other``."""
        if self.sampled:
            return Equality(0, 0, ())
        theirs = {(r.prompt, r.repeat): r.run.token_ids for r in self.runs(domain, other)}
        parted: dict[str, int] = {}
        compared: set[str] = set()
        for record in self.runs(domain, arm, setting):
            there = theirs.get((record.prompt, record.repeat))
            if there is not None:
                compared.add(record.prompt)
                at = first_difference(record.run.token_ids, there)
                if at is not None:
                    parted[record.prompt] = min(at, parted.get(record.prompt, at))
        return Equality(len(compared), len(compared) - len(parted), tuple(parted.items()))


def middle_half(values: Sequence[float]) -> tuple[float, float] | None:
    """The first and the third quartile, interpolated; None of fewer than two values."""
    if len(values) < 2:
        return None
    return percentile(values, 0.25), percentile(values, 0.75)


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first token that differs or that only one of them has; None if equal."""
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


def _speed(records: Sequence[Record]) -> float:
    ms = sum(record.run.decode_ms for record in records)
    return sum(record.run.decode_tokens for record in records) / ms * 1e3 if ms > 0 else 0.0
