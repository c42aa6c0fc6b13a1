"""The drafting methods side by side: speedup, acceptance, memory and trained parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specstream.bench.arms.base import methods
from specstream.bench.figures import geometric_mean
from specstream.bench.results import Results
from specstream.bench.table import aligned

__all__ = ["methods_table"]

_FEWEST = 3  # with fewer methods there is no table


def methods_table(results: Results, weights: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A table with a row for each method, and an empty line; no lines where few were measured.

    Acceptance (accepted / drafted tokens) and tokens a pass (1 + accepted tokens / target passes) are
    computed over all domains of the mean together.

    Args:
        results: The records.
        weights: By arm: ``parameters`` and ``nbytes`` of its draft model or head.
    """
    arms = [arm for arm, _ in results.arms if arm in methods() or arm == "auto"]
    if len(arms) < _FEWEST or "own" not in dict(results.arms):
        return []
    domains = results.mean_domains
    head = [*domains, "geo. mean", "accepted", "tokens a pass", "memory", "trained"]
    rows = [["speedup of each method", *head]]
    rows += [[f"  {arm}", *_cells(results, arm), *_weights(weights.get(arm, {}))] for arm in arms]
    return [*aligned(rows), ""]


def _cells(results: Results, arm: str) -> list[str]:
    ratios = [results.ratio(domain, arm, "own") for domain in results.mean_domains]
    found = [results.figures.get((domain, arm, "")) for domain in results.mean_domains]
    known = [figures for figures in found if figures is not None]
    drafted, accepted = sum(f.drafted or 0 for f in known), sum(f.accepted for f in known)
    rounds = sum(f.rounds for f in known)
    return [
        *(_times(ratio) for ratio in (*ratios, geometric_mean(ratios))),
        f"{accepted / drafted:.0%}" if drafted else "-",
        f"{1 + accepted / rounds:.2f}" if rounds else "-",
    ]


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def _weights(of: Mapping[str, Any]) -> list[str]:
    if not of.get("nbytes"):
        return ["-", "-"]
    return [f"{of['nbytes'] / 2**20:.1f} MB", f"{of['parameters'] / 1e6:.2f}M"]
