"""The experiment as a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specstream.bench.arms.base import MEANINGS, PEERS, label
from specstream.bench.figures import Figures, geometric_mean
from specstream.bench.results import Results
from specstream.bench.run import Outcome

__all__ = ["heading_of", "table_of"]


def heading_of(origin: Mapping[str, Any], outcome: Outcome) -> list[str]:
    """What was measured on what, in two lines."""
    gpu, padded = origin["gpu"], origin["target_padded"]
    machine = gpu["name"] if gpu else f"{origin['cpu']}, CPU threads: {origin['threads']}"
    target, draft, options = origin["target"], origin["draft"], origin["options"]
    size = f"padded to {target['parameters'] / 1e6:.0f}M" if padded else _size(target)
    load = "/".join(str(one) for one in origin["load_average_before"] or ()) or "unknown"
    first = (
        f"target {size}, draft {_size(draft)} (proposer: {origin['proposer']['kind']}), "
        f"{origin['dtype']} on {machine}; temperature {options['temperature']:g}, "
        f"at most {options['max_tokens']} tokens a reply"
    )
    second = (
        f"specstream {origin['specstream']}, torch {origin['packages']['torch']}, transformers "
        f"{origin['packages']['transformers']}; {outcome.cells} replies of each arm, the arms in turn, "
        f"one request at a time; load average before: {load}"
    )
    return [first, second, ""]


def _size(model: Mapping[str, Any] | None) -> str:
    return "none" if model is None else f"{model['name']} {model['parameters'] / 1e6:.1f}M"


def table_of(results: Results, summary: Mapping[str, float | None]) -> list[str]:
    """Speeds, ratios, acceptance, latency and equality; one line each, aligned."""
    domains, means = results.domains, results.mean_domains
    empty = [""] * (len(domains) + 1)
    counts = [f"{results.prompt_count([domain])} " for domain in domains]
    rows = [
        ["", *domains, "geo. mean"],
        ["prompts", *counts, f"{results.prompt_count(means)} "],
        ["tokens a second, after a reply's first", *empty],
    ]
    rows += [[f"  {label(*arm)}", *_speeds(results, *arm)] for arm in results.arms]
    rows.append(["times as fast", *empty])
    for name, arm, other in _RATIOS:
        cells = [_ratio(results.ratio(domain, arm, other)) for domain in domains]
        mean = geometric_mean(results.ratio(d, arm, other) for d in means)
        if mean is not None:
            rows.append([f"  {name}", *cells, _ratio(mean)])
        if (arm, other) == ("auto", "own"):
            halves = [
                results.middle_half(of, arm, other) for of in (*([d] for d in domains), means)
            ]
            if any(halves):
                rows.append([f"  {name}, middle half of prompts", *map(_range, halves)])
    ends = [results.end_to_end_ratio(domain, "auto", "own") for domain in domains]
    if any(ends):
        mean = summary["speculation_vs_own_end_to_end"]
        rows.append(["  auto / own, whole requests", *map(_ratio, ends), _ratio(mean)])
    rows += _auto_rows(results)
    equal = _equal_lines(results)
    return [*_aligned(rows), "", *_legend(results), *([""] if equal else []), *equal]


_RATIOS = (
    ("auto / own", "auto", "own"),
    ("own / generate", "own", "generate"),
    ("auto / generate", "auto", "generate"),
    ("auto / assisted (best)", "auto", "assisted"),
    ("auto / lookup (best)", "auto", "lookup"),
    ("auto / llama.cpp", "auto", "llama.cpp"),
    ("own / llama.cpp", "own", "llama.cpp"),
    ("assisted (best) / generate", "assisted", "generate"),
    ("lookup (best) / generate", "lookup", "generate"),
)


def _legend(results: Results) -> list[str]:
    """Who the arms are, as far as they are there."""
    lines = [
        f"{arm}: {words}"
        for arm, words in MEANINGS.items()
        if any(name.startswith(arm) for name, _ in results.arms)
    ]
    if any(len(results.settings(arm)) > 1 for arm, _ in results.arms):
        lines.append("*: the fastest of its settings in the domain")
    return lines


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
        rows.append(["  accepted of all drafted tokens", *[_share(rate) for rate in rates], ""])
        expected = [f.predicted_speedup if f else None for f in found]
        if any(expected):
            rows.append(["  speedup that it expected", *map(_ratio, expected), ""])
        rows += _proposer_rows(found)
        lengths = [f"{f.mean_acceptance_length:.2f} " if f else "- " for f in found]
        rows.append(["  tokens a target pass", *lengths, ""])
    if {"own", "auto"} & {arm for arm, _ in results.arms}:
        rows.append(["milliseconds, median/p95", *[""] * (len(results.domains) + 1)])
    for arm in ("own", "auto"):
        found = [results.figures.get((domain, arm, "")) for domain in results.domains]
        if any(found):
            for name, key in (("first token", "ttft"), ("between emissions", "gap")):
                cells = [f"{f.ms[key][0]:.1f}/{f.ms[key][1]:.1f} " if f else "- " for f in found]
                rows.append([f"  {arm}: {name}", *cells, ""])
    return rows


_ROUNDS = {"off": "without drafts", "draft": "of the draft model", "ngram": "of lookup"}


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
        rows.append([f"  rounds {_ROUNDS.get(kind, f'of {kind}')}", *map(_share, shares), ""])
    return rows


def _equal_lines(results: Results) -> list[str]:
    """In how many prompts the tokens are the same: ours as our plain loop's, all as generate's."""
    lines = []
    for other, of in (("own", "our plain loop"), ("generate", "transformers' generate")):
        parts = []
        for arm, setting in results.arms:
            same = [results.equality(d, arm, setting, other) for d in results.domains]
            prompts = sum(one.prompts for one in same)
            if prompts and arm != other and not (other == "own" and arm in PEERS):
                equal = sum(one.identical for one in same)
                parts.append(f"{label(arm, setting)} {equal} of {prompts}")
        if parts:
            lines.append(f"replies with the same tokens as {of}: {', '.join(parts)}")
    return lines


def _range(value: tuple[float, float] | None) -> str:
    return "- " if value is None else f"{value[0]:.2f}-{value[1]:.2f}x"


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


def crowd_lines(found: Mapping[str, Any] | None) -> list[str]:
    """Several requests at once (`Crowd.to_dict`) in one sentence; nothing if that wasn't measured."""
    if found is None:
        return []
    ratios, rounds = found["throughput_ratio_rounds"], found["rounds"]
    return [
        f"{found['at_once']} requests at once: {found['throughput_ratio']:.2f} times as many tokens a "
        f"second as one after another (n = {rounds} rounds of {found['requests'] // rounds} requests, "
        f"from {min(ratios):.2f} to {max(ratios):.2f}); one wait for tokens in twenty takes "
        f"{found['gap_ms_p95_together']:.0f} ms or more instead of {found['gap_ms_p95_alone']:.0f}"
    ]
