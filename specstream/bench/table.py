"""The experiment as a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specstream.bench.arms.base import label
from specstream.bench.figures import Figures, geometric_mean
from specstream.bench.results import Results
from specstream.bench.run import Outcome
from specstream.bench.summary import domains_note

__all__ = ["heading_of", "table_of"]


def heading_of(origin: Mapping[str, Any], outcome: Outcome) -> list[str]:
    """What was measured on what, in two lines."""
    gpu, padded = origin["gpu"], origin["target_padded"]
    machine = gpu["name"] if gpu else f"{origin['cpu']}, threads: {origin['threads']}"
    target, draft = origin["target"], origin["draft"]
    proposer = origin["proposer"]["kind"]
    size = f"padded to {target['parameters'] / 1e6:.0f}M" if padded else _size(target)
    load = "/".join(str(one) for one in origin["load_average_before"] or ())
    first = (
        f"target {size}, draft {_size(draft)} (auto: {proposer}), {origin['dtype']} on {machine}; "
        f"temperature {origin['options']['temperature']:g}, "
        f"at most {origin['options']['max_tokens']} tokens"
    )
    second = (
        f"specstream {origin['specstream']}, torch {origin['packages']['torch']}, transformers "
        f"{origin['packages']['transformers']}; {outcome.cells} cells, arms interleaved, batch 1; "
        f"load average before: {load}"
    )
    return [first, second, ""]


def _size(model: Mapping[str, Any] | None) -> str:
    return "none" if model is None else f"{model['name']} {model['parameters'] / 1e6:.1f}M"


def table_of(results: Results, summary: Mapping[str, float | None]) -> list[str]:
    """Speeds, ratios, acceptance, latency and equality; one line each, aligned."""
    domains = results.domains
    head = ["", *domains, "geo. mean"]
    rows: list[list[str]] = [["decode tokens/s", *[""] * (len(domains) + 1)]]
    for arm, setting in results.arms:
        rows.append([f"  {label(arm, setting)}", *_speeds(results, arm, setting)])
    rows.append(["how many times as fast", *[""] * (len(domains) + 1)])
    for name, arm, other in _RATIOS:
        cells = [_ratio(results.ratio(domain, arm, other)) for domain in domains]
        mean = geometric_mean(results.ratio(d, arm, other) for d in results.mean_domains)
        if mean is not None:
            rows.append([f"  {name}", *cells, _ratio(mean)])
    ends = [results.end_to_end_ratio(domain, "auto", "own") for domain in domains]
    if any(ends):
        mean = summary["speculation_vs_own_end_to_end"]
        rows.append(["  auto / own, end to end", *map(_ratio, ends), _ratio(mean)])
    rows += _auto_rows(results)
    lines = _aligned([head, *rows])
    return [*lines, "", domains_note(results), *_equal_lines(results)]


_RATIOS = (
    ("auto / own", "auto", "own"),
    ("own / generate", "own", "generate"),
    ("auto / generate", "auto", "generate"),
    ("auto / assisted (best)", "auto", "assisted"),
    ("auto / lookup (best)", "auto", "lookup"),
    ("assisted (best) / generate", "assisted", "generate"),
    ("lookup (best) / generate", "lookup", "generate"),
)


def _speeds(results: Results, arm: str, setting: str) -> list[str]:
    cells = []
    for domain in results.domains:
        figures = results.figures.get((domain, arm, setting))
        speed = figures.decode_tokens_per_second if figures else 0.0
        best = results.best(domain, arm)
        mark = "*" if best and best[0] == setting and len(results.settings(arm)) > 1 else " "
        cells.append(f"{speed:.1f}{mark}" if speed else "- ")
    speeds = [results.figures.get((d, arm, setting)) for d in results.mean_domains]
    mean = geometric_mean(f.decode_tokens_per_second for f in speeds if f is not None)
    return [*cells, f"{mean:.1f} " if mean else "- "]


def _auto_rows(results: Results) -> list[list[str]]:
    rows: list[list[str]] = []
    for arm in ("auto", *[a for a, _ in results.arms if a.startswith("draft-") or a == "ngram"]):
        found = [results.figures.get((domain, arm, "")) for domain in results.domains]
        if not any(figures and figures.drafted for figures in found):
            continue
        rows.append([arm, *[""] * (len(found) + 1)])
        rates = [f.acceptance_rate if f else None for f in found]
        rows.append(["  accepted of drafted", *[_share(rate) for rate in rates], ""])
        expected = [f.predicted_speedup if f else None for f in found]
        if any(expected):
            rows.append(["  speedup it expected", *map(_ratio, expected), ""])
        rows += _proposer_rows(found)
        lengths = [f"{f.mean_acceptance_length:.2f} " if f else "- " for f in found]
        rows.append(["  tokens a target pass", *lengths, ""])
    for arm in ("own", "auto"):
        found = [results.figures.get((domain, arm, "")) for domain in results.domains]
        if any(found):
            for name, key in (("first token ms", "ttft"), ("gap ms", "gap")):
                cells = [f"{f.ms[key][0]:.1f}/{f.ms[key][1]:.1f} " if f else "- " for f in found]
                rows.append([f"  {arm}: {name}, p50/p95", *cells, ""])
    return rows


def _proposer_rows(found: Sequence[Figures | None]) -> list[list[str]]:
    """Who proposed in how many of the rounds, where several take turns."""
    kinds = dict.fromkeys(kind for f in found if f for kind in f.proposer_rounds)
    if len(kinds) < 3:  # one, and nobody in the first round
        return []
    rows = []
    for kind in kinds:
        shares = [
            f.proposer_rounds.get(kind, 0) / max(1, sum(f.proposer_rounds.values())) if f else None
            for f in found
        ]
        rows.append([f"  rounds of {kind}", *map(_share, shares), ""])
    return rows


def _equal_lines(results: Results) -> list[str]:
    lines = []
    for arm, setting in results.arms:
        parts = []
        for other in ("own", "generate"):
            same = [results.equality(d, arm, setting, other) for d in results.domains]
            prompts = sum(e.prompts for e in same)
            if prompts and other != arm:
                parts.append(f"{other} in {sum(e.identical for e in same)} of {prompts} prompts")
        if parts and arm != "generate":
            lines.append(f"{label(arm, setting)}: the same tokens as {', as '.join(parts)}")
    return lines


def _ratio(value: float | None) -> str:
    return "- " if value is None else f"{value:.2f}x"


def _share(value: float | None) -> str:
    return "- " if value is None else f"{value:.0%} "


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
