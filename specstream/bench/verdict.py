"""The answer in words: did speculation earn its keep, where, against whom, and what could it bring."""

from __future__ import annotations

from collections.abc import Mapping

from specstream.bench.costs import Ceiling, Costs
from specstream.bench.results import Results
from specstream.bench.summary import faster_peer

__all__ = ["verdict_of"]

WORTH = 1.05  # less than this is not worth a second model in memory
LOSS = 0.95
FEW = 10  # prompts: fewer are a hint

_OTHERS = (
    ("transformers' generate", "generate", "speculation_vs_generate", "ar_vs_generate"),
    ("transformers' assisted generation", "assisted", "speculation_vs_assisted", ""),
    ("transformers' prompt lookup", "lookup", "speculation_vs_lookup", ""),
    ("llama.cpp's plain decoding", "llama.cpp", "speculation_vs_llama_cpp", "ar_vs_llama_cpp"),
)
"""Who is compared with, the arm, and the summary's keys for our loop with and without speculation."""
_PARTS = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth", 6: "a sixth", 7: "a seventh",
          8: "an eighth", 9: "a ninth", 10: "a tenth"}  # fmt: skip


def verdict_of(
    results: Results,
    summary: Mapping[str, float | None],
    costs: Mapping[str, Costs],
    ceilings: Mapping[str, Ceiling],
) -> list[str]:
    """A few sentences, the answer first. ``costs`` and ``ceilings`` are by domain."""
    over_own = summary["speculation_vs_own"]
    if over_own is None:
        lines = ["no verdict on speculation: that takes the arms own and auto"]
    else:
        worst = summary["worst_domain_vs_own"]
        lines = [_headline(over_own) + _sureness(results) + _loss(over_own, worst)]
        lines += _where(results)
    for name, arm, fast, plain in _OTHERS:
        lines += _against(name, summary.get(fast), summary.get(plain), _domains(results, arm))
    lines += _against_best(results, summary["speculation_vs_best_peer"])
    lines += [
        _ceiling(domain, costs[domain], ceiling)
        for domain, ceiling in ceilings.items()
        if domain in costs
    ]
    return lines


def _headline(over_own: float) -> str:
    if over_own >= WORTH:
        text = "speculation earned its keep"
    elif over_own > LOSS:
        text = "speculation made no difference here"
    else:
        text = "turn speculation off"
    return f"{text}: {over_own:.2f} times the speed of the same engine without it"


def _loss(over_own: float, worst: float | None) -> str:
    if over_own < WORTH or worst is None or worst >= LOSS:
        return ""
    return f"; but it cost time in one domain ({worst:.2f} times)"


def _sureness(results: Results) -> str:
    """How many prompts that rests on, and how far they lie apart."""
    domains = results.mean_domains
    prompts = sum(len(results.prompt_ratios(domain, "auto", "own")) for domain in domains)
    half = results.middle_half(domains, "auto", "own")
    text = f"n = {prompts} prompt{'s' if prompts != 1 else ''}"
    if half:
        text += f", the middle half of them between {half[0]:.2f} and {half[1]:.2f}"
    return f" ({text}{'; so few are a hint, no more' if prompts < FEW else ''})"


def _where(results: Results) -> list[str]:
    ratios = {d: results.ratio(d, "auto", "own") for d in results.domains}
    known = {d: r for d, r in ratios.items() if r is not None}
    pays = [f"{d} ({r:.2f})" for d, r in known.items() if r >= WORTH]
    even = [f"{d} ({r:.2f})" for d, r in known.items() if LOSS < r < WORTH]
    costs = [f"{d} ({r:.2f})" for d, r in known.items() if r <= LOSS]
    parts = [
        f"{word} {', '.join(found)}"
        for word, found in (
            ("pays on", pays),
            ("changes nothing on", even),
            ("costs time on", costs),
        )
        if found
    ]
    return [f"it {'; '.join(parts)}"] if parts else []


def _domains(results: Results, peer: str) -> dict[str, float]:
    ratios = {d: results.ratio(d, "auto", peer) for d in results.domains}
    return {d: ratio for d, ratio in ratios.items() if ratio is not None}


def _against(
    name: str, fast: float | None, plain: float | None, domains: Mapping[str, float]
) -> list[str]:
    """One other way to decode: gains and losses in the same words, and where it is the other way."""
    if fast is None:
        return [] if plain is None else [f"without speculation it is {_compared(plain, name)}"]
    also = "" if plain is None else f"; without speculation, {plain:.2f} times"
    return [f"with speculation it is {_compared(fast, name)}{also}{_but(fast, domains)}"]


def _against_best(results: Results, ratio: float | None) -> list[str]:
    peers = {d: faster_peer(results, d) for d in results.domains}
    if ratio is None or len(set(peers.values()) - {None}) < 2:
        return []  # then it has been said
    ratios = {d: results.ratio(d, "auto", peer) for d, peer in peers.items() if peer}
    known = {d: r for d, r in ratios.items() if r is not None}
    name = "the better of assisted generation and lookup in each domain"
    return [f"with speculation it is {_compared(ratio, name)}{_but(ratio, known)}"]


def _compared(ratio: float, name: str) -> str:
    if LOSS < ratio < WORTH:
        return f"about as fast as {name}: {ratio:.2f} times its speed"
    return f"{'faster' if ratio >= WORTH else 'slower'} than {name}: {ratio:.2f} times its speed"


def _but(ratio: float, domains: Mapping[str, float]) -> str:
    slower = [f"{d} ({r:.2f})" for d, r in domains.items() if r <= LOSS]
    faster = [f"{d} ({r:.2f})" for d, r in domains.items() if r >= WORTH]
    if ratio > LOSS and slower:
        return f"; but slower on {', '.join(slower)}"
    if ratio < WORTH and faster:
        return f"; but faster on {', '.join(faster)}"
    return ""


def _ceiling(domain: str, costs: Costs, ceiling: Ceiling) -> str:
    best = ceiling.best
    text = (
        f"{domain}: a drafted token costs {_part(costs.c)} of a plainly decoded one, and is accepted "
        f"{ceiling.acceptance:.0%} of the time where those before it were; "
    )
    if best.drafts == 0:
        return text + "at that rate no number of drafts beats plain decoding"
    measured = "" if ceiling.measured is None else f" (measured: {ceiling.measured:.2f})"
    tokens = "1 token" if best.drafts == 1 else f"{best.drafts} tokens"
    return (
        f"{text}were every round like that, drafting {tokens} in each would bring "
        f"{best.speedup:.2f} times{measured}"
    )


def _part(share: float) -> str:
    """A share in words where a plain fraction comes close, with the figure beside."""
    whole = round(1 / share) if share > 0 else 0
    if whole in _PARTS and abs(share * whole - 1) < 0.15:
        return f"about {_PARTS[whole]} ({share:.2f})"
    return f"{share:.2f}"
