"""The experiment's results as text tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

from specstream.bench.arms.base import MEANINGS, METHODS, PEERS, label
from specstream.bench.records import geometric_mean
from specstream.bench.results import PAIRS, Figures, Results
from specstream.bench.run import Outcome

__all__ = ["crowd_lines", "heading_of", "methods_table", "table_of"]

_FEWEST_METHODS = 3  # with fewer methods they have no table


def heading_of(origin: Mapping[str, Any], outcome: Outcome) -> list[str]:
    """Two lines about the models, the machine, the sampling and the versions, then an empty line."""
    gpu, padded = origin["gpu"], origin["target_padded"]
    native = origin["native"] or "none"
    machine = f"{origin['cpu']}, CPU threads: {origin['threads']}, native code: {native}"
    machine = gpu["name"] if gpu else machine
    target, options = origin["target"], origin["options"]
    size = f"padded to {target['parameters'] / 1e6:.0f}M" if padded else _size(target)
    load = "/".join(str(one) for one in origin["load_average_before"] or ()) or "unknown"
    first = (
        f"target {size}, draft {_size(origin['draft'])} (proposer: {origin['proposer']['kind']}), "
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


def table_of(results: Results) -> list[str]:
    """Speeds, ratios, acceptance, latency and equality; aligned lines."""
    means = results.mean_domains
    counts = [f"{results.prompt_count(of)} " for of in (*([d] for d in results.domains), means)]
    rows = [["", *results.domains, "geo. mean"], ["prompts", *counts], ["decode speed, tokens a second"]]
    rows += [[f"  {label(*arm)}", *_speeds(results, *arm)] for arm in results.arms]
    rows += [["ratio of decode speeds"], *_ratio_rows(results)]
    drafting = [a for a, _ in results.arms if a not in ("own", "auto", *PEERS)]
    for arm in ("auto", *drafting):
        rows += _drafting_rows(arm, _figures(results, arm))
    rows += _latency_rows(results)
    equal = _equal_lines(results)
    return [*_aligned(rows), "", *_legend(results), *([""] if equal else []), *equal]


def _figures(results: Results, arm: str) -> list[Figures | None]:
    return [results.figures.get((domain, arm, "")) for domain in results.domains]


def _speeds(results: Results, arm: str, setting: str) -> list[str]:
    cells, several = [], len(results.settings(arm)) > 1
    found = [results.figures.get((domain, arm, setting)) for domain in results.domains]
    speeds = [figures.decode_tokens_per_second if figures else 0.0 for figures in found]
    for domain, speed in zip(results.domains, speeds, strict=True):
        best = results.best(domain, arm)
        mark = "*" if several and best and best[0] == setting else " "
        cells.append(f"{speed:.1f}{mark}" if speed else "- ")
    of = dict(zip(results.domains, speeds, strict=True))
    mean = geometric_mean(of[domain] for domain in results.mean_domains)
    return [*cells, f"{mean:.1f} " if mean else "- "]


def _ratio_rows(results: Results) -> list[list[str]]:
    rows = []
    for arm, other in PAIRS:
        name = " / ".join(f"{a} (best)" if a in ("assisted", "lookup") else a for a in (arm, other))
        mean = results.mean_ratio(arm, other)
        if mean is not None:
            ratios = [results.ratio(domain, arm, other) for domain in results.domains]
            rows.append([f"  {name}", *map(_ratio, ratios), _ratio(mean)])
        if (arm, other) == ("auto", "own"):
            groups = [*([domain] for domain in results.domains), results.mean_domains]
            halves = [results.middle_half(group, arm, other) for group in groups]
            if any(halves):
                cells = [f"{half[0]:.2f}-{half[1]:.2f}x" if half else "- " for half in halves]
                rows.append([f"  {name}, middle half of prompts", *cells])
    ends = [results.end_to_end_ratio(domain, "auto", "own") for domain in results.domains]
    if any(ends):
        mean = results.mean_ratio("auto", "own", results.end_to_end_ratio)
        rows.append(["  auto / own, whole requests", *map(_ratio, ends), _ratio(mean)])
    return rows


_ROUNDS = {"off": "without drafts", "draft": "with the draft model", "suffix": "with lookup"}


def _drafting_rows(arm: str, found: Sequence[Figures | None]) -> list[list[str]]:
    """Acceptance and predicted speedup of an arm that drafts, and its share of rounds by proposer."""
    if not any(figures and figures.drafted for figures in found):
        return []

    def row(name: str, cell: Callable[[Figures], str]) -> list[str]:
        return [f"  {name}", *(cell(figures) if figures else "- " for figures in found)]

    rows = [[arm], row("accepted of all drafted tokens", lambda f: _share(f.acceptance_rate))]
    if any(f and f.predicted_speedup for f in found):
        rows.append(row("predicted speedup", lambda f: _ratio(f.predicted_speedup)))
    kinds = dict.fromkeys(kind for f in found if f for kind in f.proposer_rounds)
    if len(kinds) > 2:  # "off" is always there: the first round has no proposer
        for kind in kinds:
            cell = partial(_rounds_of, kind)
            rows.append(row(f"rounds {_ROUNDS.get(kind, f'with {kind}')}", cell))
    return [*rows, row("tokens a target pass", lambda f: f"{f.mean_acceptance_length:.2f} ")]


def _rounds_of(kind: str, figures: Figures) -> str:
    rounds = figures.proposer_rounds
    return _share(rounds.get(kind, 0) / max(1, sum(rounds.values())))


def _latency_rows(results: Results) -> list[list[str]]:
    rows = []
    for arm in ("own", "auto"):
        found = _figures(results, arm)
        if any(found):
            for name, key in (("first token", "ttft"), ("between emissions", "gap")):
                cells = [f"{f.ms[key]['p50']:.1f}/{f.ms[key]['p95']:.1f} " if f else "- " for f in found]
                rows.append([f"  {arm}: {name}", *cells])
    return [["milliseconds, median/p95"], *rows] if rows else []


def _legend(results: Results) -> list[str]:
    """The meanings of the measured arms."""
    lines = [
        f"{arm}: {words}"
        for arm, words in MEANINGS.items()
        if any(name == arm or name.startswith(f"{arm}-") for name, _ in results.arms)
    ]
    if any(len(results.settings(arm)) > 1 for arm, _ in results.arms):
        lines.append("*: the fastest of its settings in the domain")
    return lines


def _equal_lines(results: Results) -> list[str]:
    """Counts of prompts with equal tokens: our arms against our plain loop, all against generate."""
    lines = []
    for other, of in (("own", "our plain loop"), ("generate", "transformers' generate")):
        parts = []
        for arm, setting in results.arms:
            found = [results.equality(d, arm, setting, other) for d in results.domains]
            known = [counts for counts in found if counts]
            if known and not (other == "own" and arm in PEERS):
                equal, prompts = (sum(c[key] for c in known) for key in ("identical", "prompts"))
                parts.append(f"{label(arm, setting)} {equal} of {prompts}")
        if parts:
            lines.append(f"replies with the same tokens as {of}: {', '.join(parts)}")
    return lines


def methods_table(results: Results, weights: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A table with a row for each method, and an empty line; no lines where few were measured.

    Acceptance (accepted / drafted tokens) and tokens a pass (1 + accepted tokens / target passes) are
    computed over all domains of the mean together.

    Args:
        results: The records.
        weights: By arm: ``parameters`` and ``nbytes`` of its draft model or head.
    """
    arms = [arm for arm, _ in results.arms if arm in METHODS or arm == "auto"]
    if len(arms) < _FEWEST_METHODS or "own" not in dict(results.arms):
        return []
    domains = results.mean_domains
    head = [*domains, "geo. mean", "accepted", "tokens a pass", "memory", "trained"]
    rows = [["speedup of each method", *head]]
    rows += [[f"  {arm}", *_method_cells(results, arm), *_weights(weights.get(arm, {}))] for arm in arms]
    return [*_aligned(rows), ""]


def _method_cells(results: Results, arm: str) -> list[str]:
    ratios = [results.ratio(domain, arm, "own") for domain in results.mean_domains]
    found = [results.figures.get((domain, arm, "")) for domain in results.mean_domains]
    known = [figures for figures in found if figures is not None]
    drafted, accepted = sum(f.drafted or 0 for f in known), sum(f.accepted for f in known)
    rounds = sum(f.rounds for f in known)
    return [
        *(_ratio(ratio).strip() for ratio in (*ratios, results.mean_ratio(arm, "own"))),
        f"{accepted / drafted:.0%}" if drafted else "-",
        f"{1 + accepted / rounds:.2f}" if rounds else "-",
    ]


def _weights(of: Mapping[str, Any]) -> list[str]:
    if not of.get("nbytes"):
        return ["-", "-"]
    return [f"{of['nbytes'] / 2**20:.1f} MB", f"{of['parameters'] / 1e6:.2f}M"]


def _ratio(value: float | None) -> str:
    return "- " if value is None else f"{value:.2f}x"


def _share(value: float | None) -> str:
    return "- " if value is None else f"{value:.0%} "


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Pad the rows' cells to columns; missing cells at the end of a row are empty."""
    columns = [list(column) for column in zip_longest(*rows, fillvalue="")]
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for first, *cells in zip(*columns, strict=True):
        padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *padded]).rstrip())
    return lines


def crowd_lines(found: Mapping[str, Any] | None) -> list[str]:
    """One sentence about concurrent requests (`Crowd.to_dict`); no line if that wasn't measured."""
    if found is None:
        return []
    ratios, rounds = found["throughput_ratio_rounds"], found["rounds"]
    return [
        f"{found['at_once']} requests at once: {found['throughput_ratio']:.2f} times as many tokens a "
        f"second as one after another (n = {rounds} rounds of {found['requests'] // rounds} requests, "
        f"from {min(ratios):.2f} to {max(ratios):.2f}); 95th percentile of the time between emissions: "
        f"{found['gap_ms_p95_together']:.0f} ms instead of {found['gap_ms_p95_alone']:.0f}"
    ]
