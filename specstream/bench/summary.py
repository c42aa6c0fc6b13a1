"""The few figures that sum an experiment up."""

from __future__ import annotations

from typing import Any

from specstream.bench.figures import geometric_mean, percentile
from specstream.bench.prompts import GRAMMAR_DOMAIN, MEAN_DOMAINS
from specstream.bench.results import Results

__all__ = [
    "LEFT_OUT",
    "domains_note",
    "faster_peer",
    "figures_by_domain",
    "ratios_by_domain",
    "summary_of",
]

LEFT_OUT = (
    "the bundled models learned such text from a grammar, so it is predictable by construction"
)


def summary_of(results: Results) -> dict[str, float | None]:
    """Ratios of decode-phase tokens a second; None where an arm that it needs wasn't run.

    Geometric means over the domains of `Results.mean_domains`, but for ``worst_domain_vs_own``, the
    lowest ratio of speculation to our own plain loop over every domain. Assisted generation and
    prompt lookup stand with their best setting in each domain; ``best_peer`` is the better of both.
    llama.cpp decodes plainly, without a draft.
    """

    def mean(arm: str, other: str) -> float | None:
        return geometric_mean(results.ratio(d, arm, other) for d in results.mean_domains)

    own = [results.ratio(d, "auto", "own") for d in results.domains]
    ends = [results.end_to_end_ratio(d, "auto", "own") for d in results.mean_domains]
    medians = [results.median_ratio(d, "auto", "own") for d in results.mean_domains]
    summary = {
        "ar_vs_generate": mean("own", "generate"),
        "speculation_vs_own": mean("auto", "own"),
        "speculation_vs_assisted": mean("auto", "assisted"),
        "speculation_vs_best_peer": geometric_mean(
            _over_faster_peer(results, d) for d in results.mean_domains
        ),
        "worst_domain_vs_own": min((r for r in own if r is not None), default=None),
        "speculation_vs_generate": mean("auto", "generate"),
        "speculation_vs_lookup": mean("auto", "lookup"),
        "speculation_vs_llama_cpp": mean("auto", "llama.cpp"),
        "ar_vs_llama_cpp": mean("own", "llama.cpp"),
        "speculation_vs_own_end_to_end": geometric_mean(ends),
        "speculation_vs_own_median_of_prompts": geometric_mean(medians),
    }
    return {key: None if value is None else round(value, 4) for key, value in summary.items()}


def faster_peer(results: Results, domain: str) -> str | None:
    """Which of assisted generation and prompt lookup is faster in a domain."""
    speeds = {peer: results.speed(domain, peer) for peer in ("assisted", "lookup")}
    there = {peer: speed for peer, speed in speeds.items() if speed}
    return max(there, key=lambda peer: there[peer], default=None)


def _over_faster_peer(results: Results, domain: str) -> float | None:
    peer = faster_peer(results, domain)
    return results.ratio(domain, "auto", peer) if peer else None


def domains_note(results: Results) -> str:
    """In words: which domains the means are over, and why not others."""
    over = results.mean_domains
    text = f"geometric means are over {', '.join(over)}"
    missing = [d for d in MEAN_DOMAINS if d not in results.domains]
    if missing:
        text += f" (no prompts of {', '.join(missing)})"
    apart = [d for d in results.domains if d not in over]
    if GRAMMAR_DOMAIN in apart:
        text += f"; {GRAMMAR_DOMAIN} stands apart: {LEFT_OUT}"
    others = [d for d in apart if d != GRAMMAR_DOMAIN]
    if others:
        text += f"; {', '.join(others)} {'is' if len(others) == 1 else 'are'} shown only"
    return text


def figures_by_domain(results: Results) -> dict[str, Any]:
    """Every figure by domain and arm, with the ratios beside."""
    return {domain: _domain(results, domain) for domain in results.domains}


def ratios_by_domain(results: Results) -> dict[str, Any]:
    """How many times as fast one arm is as another: by sums, over the prompts, and end to end."""
    return {
        domain: {
            f"{arm} / {other}": found
            for arm, other in _PAIRS
            if (found := _ratios(results, domain, arm, other)) is not None
        }
        for domain in results.domains
    }


_PAIRS = (
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


def _ratios(results: Results, domain: str, arm: str, other: str) -> dict[str, Any] | None:
    decode = results.ratio(domain, arm, other)
    if decode is None:
        return None
    by_prompt = results.prompt_ratios(domain, arm, other)
    half = results.middle_half([domain], arm, other)
    values = {
        "prompts": len(by_prompt),
        "decode": decode,
        "decode_median_of_prompts": results.median_ratio(domain, arm, other),
        "decode_p10_of_prompts": percentile(by_prompt, 0.1),
        "decode_p25_of_prompts": half and half[0],
        "decode_p75_of_prompts": half and half[1],
        "decode_p90_of_prompts": percentile(by_prompt, 0.9),
        "end_to_end": results.end_to_end_ratio(domain, arm, other),
    }
    return {key: None if value is None else round(value, 4) for key, value in values.items()}


def _domain(results: Results, domain: str) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for arm, setting in results.arms:
        figures = results.figures.get((domain, arm, setting))
        if figures is None:
            continue
        best = results.best(domain, arm)
        row = figures.to_dict() | {
            "arm": arm,
            "setting": setting,
            "best_setting": best is not None and best[0] == setting,
        }
        for other in ("own", "generate"):
            row[f"same_tokens_as_{other}"] = _equality(results, domain, arm, setting, other)
        rows[f"{arm} ({setting})" if setting else arm] = row
    return rows


def _equality(
    results: Results, domain: str, arm: str, setting: str, other: str
) -> dict[str, Any] | None:
    if other == arm:
        return None
    found = results.equality(domain, arm, setting, other)
    if not found.prompts:
        return None
    return {
        "prompts": found.prompts,
        "identical": found.identical,
        "share": round(found.identical / found.prompts, 4),
        "first_divergence": dict(found.first_divergence),
    }
