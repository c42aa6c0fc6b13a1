"""The answer in words: did speculation earn its keep, where, and what is the most it could bring."""

from __future__ import annotations

from collections.abc import Mapping

from specstream.bench.costs import Ceiling, Costs
from specstream.bench.results import Results

__all__ = ["verdict_of"]

WORTH = 1.05  # less than this is not worth a second model in memory
LOSS = 0.95


def verdict_of(
    results: Results,
    summary: Mapping[str, float | None],
    costs: Mapping[str, Costs],
    ceilings: Mapping[str, Ceiling],
) -> list[str]:
    """A few sentences, the answer first. ``costs`` and ``ceilings`` are by domain."""
    over_own = summary["speculation_vs_own"]
    if over_own is None:
        return ["no verdict: it takes the arms own and auto to see what speculation brings"]
    lines = [_headline(over_own, summary["worst_domain_vs_own"])]
    lines += _where(results)
    lines += _peers(summary)
    lines += [
        _ceiling(domain, costs[domain], ceiling)
        for domain, ceiling in ceilings.items()
        if domain in costs
    ]
    return lines


def _headline(over_own: float, worst: float | None) -> str:
    worst = over_own if worst is None else worst
    if over_own >= WORTH:
        text = f"speculation earned its keep: {over_own:.2f}x our own loop without it"
        if worst < LOSS:
            text += f", but it cost time in one domain ({worst:.2f}x)"
    elif over_own > LOSS:
        text = f"speculation made no difference here: {over_own:.2f}x our own loop without it"
    else:
        text = f"turn it off: {over_own:.2f}x our own loop without it"
    return text


def _where(results: Results) -> list[str]:
    ratios = {d: results.ratio(d, "auto", "own") for d in results.domains}
    known = {d: r for d, r in ratios.items() if r is not None}
    pays = [f"{d} {r:.2f}x" for d, r in known.items() if r >= WORTH]
    even = [f"{d} {r:.2f}x" for d, r in known.items() if LOSS < r < WORTH]
    costs = [f"{d} {r:.2f}x" for d, r in known.items() if r <= LOSS]
    parts = [
        f"{word} {', '.join(found)}"
        for word, found in (("pays on", pays), ("is even on", even), ("costs on", costs))
        if found
    ]
    return [f"it {'; '.join(parts)}"] if parts else []


def _peers(summary: Mapping[str, float | None]) -> list[str]:
    names = {
        "speculation_vs_generate": "transformers generate",
        "speculation_vs_assisted": "its assisted generation (best setting by domain)",
        "speculation_vs_best_peer": "the better of that and its prompt lookup",
    }
    parts = [
        f"{summary[key]:.2f}x {name}" for key, name in names.items() if summary.get(key) is not None
    ]
    return [f"speculation against peers: {', '.join(parts)}"] if parts else []


def _ceiling(domain: str, costs: Costs, ceiling: Ceiling) -> str:
    best = ceiling.best
    width = max(best.drafts, 1) + 1
    text = (
        f"{domain}: a drafted token costs {costs.c:.2f} plain rounds, a pass over {width} tokens "
        f"{costs.v_at(width):.2f}, the rest {costs.o:.2f}; "
    )
    if best.drafts == 0:
        return text + f"at {ceiling.acceptance:.0%} acceptance nothing beats plain decoding"
    measured = "" if ceiling.measured is None else f", measured {ceiling.measured:.2f}x"
    drafts = "1 draft" if best.drafts == 1 else f"{best.drafts} drafts"
    return text + (
        f"were every round drafted at its {ceiling.acceptance:.0%} acceptance, {drafts} would be best "
        f"and bring {best.speedup:.2f}x (the rounds as run: {ceiling.as_run:.2f}x by these costs"
        f"{measured})"
    )
