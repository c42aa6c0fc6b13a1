"""The result as one JSON object, and the files of an experiment."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from specstream.bench.costs import Ceiling, RoundCosts, ceiling_of, costs_of
from specstream.bench.prompts import GRAMMAR_DOMAIN
from specstream.bench.records import Record, rounded
from specstream.bench.results import Results
from specstream.bench.run import Outcome
from specstream.checks import counted, writing

__all__ = ["Files", "analyse", "document_of", "domains_note", "verdict_of"]

WORTH = 1.05  # from this ratio on speculation is faster: less is not worth a second model in memory
LOSS = 0.95  # up to this ratio speculation is slower
FEW = 10  # with fewer prompts, the verdict says that it is only a hint

_HEADLINES = {
    "faster": "speculation is faster here",
    "about as fast": "speculation makes no difference here",
    "slower": "speculation is slower here, so turn it off",
}
_OTHERS = (
    ("transformers' generate", "generate", True),
    ("transformers' assisted generation", "assisted", False),
    ("transformers' prompt lookup", "lookup", False),
    ("llama.cpp's plain decoding", "llama.cpp", True),
)
"""Name, arm, and whether our loop without speculation is compared with it as well."""
_PARTS = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth", 6: "a sixth", 7: "a seventh",
          8: "an eighth", 9: "a ninth", 10: "a tenth"}  # fmt: skip


def verdict_of(
    results: Results, costs: Mapping[str, RoundCosts], ceilings: Mapping[str, Ceiling]
) -> list[str]:
    """The verdict, one sentence a line, speculation's gain first.

    ``costs`` and ``ceilings`` are by domain.
    """
    own = results.ratios("auto", "own")
    over_own = results.mean_ratio("auto", "own")
    if over_own is None:
        lines = ["no verdict on speculation: it needs the arms own and auto"]
    else:
        lines = [_headline(over_own, min(own.values()), results)]
        lines.append(f"speculation by domain: {_where(own)}")
    for name, arm, plainly in _OTHERS:
        lines += _against(
            name,
            results.mean_ratio("auto", arm),
            results.mean_ratio("own", arm) if plainly else None,
            results.ratios("auto", arm),
        )
    peers = {domain: results.faster_peer(domain) for domain in results.domains}
    if len(set(peers.values()) - {None}) > 1:
        name = "the better of assisted generation and lookup in each domain"
        known = {d: r for d, peer in peers.items() if peer and (r := results.ratio(d, "auto", peer))}
        lines += _against(name, results.summary()["speculation_vs_best_peer"], None, known)
    return lines + [_ceiling(d, costs[d], found) for d, found in ceilings.items()]


def _headline(over_own: float, worst: float, results: Results) -> str:
    text = _HEADLINES[_kind(over_own)]
    domains = results.mean_domains
    prompts = sum(len(results.prompt_ratios(domain, "auto", "own")) for domain in domains)
    spread = f"n = {counted(prompts, 'prompt')}"
    if half := results.middle_half(domains, "auto", "own"):
        spread += f", the middle half of them between {half[0]:.2f} and {half[1]:.2f}"
    if prompts < FEW:
        spread += "; only a hint, as the prompts are few"
    loss = f"; but it is slower in a domain ({worst:.2f} times)"
    return (
        f"{text}: {over_own:.2f} times the speed of the same engine without it ({spread})"
        f"{loss if over_own >= WORTH and worst < LOSS else ''}"
    )


def _kind(ratio: float) -> str:
    """A ratio of speeds in words, one of the keys of `_HEADLINES`."""
    return "faster" if ratio >= WORTH else "slower" if ratio <= LOSS else "about as fast"


def _listed(ratios: Mapping[str, float], kind: str) -> str:
    """The domains whose ratio is of this kind, in words; empty if there are none."""
    found = [f"{domain} ({ratio:.2f})" for domain, ratio in ratios.items() if _kind(ratio) == kind]
    return f"{kind} on {', '.join(found)}" if found else ""


def _where(ratios: Mapping[str, float]) -> str:
    return "; ".join(filter(None, (_listed(ratios, kind) for kind in _HEADLINES)))


def _against(
    name: str, fast: float | None, plain: float | None, domains: Mapping[str, float]
) -> list[str]:
    """The comparison with one other way to decode, and the domains where the result is the opposite.

    ``fast`` and ``plain`` are our mean ratios to it with and without speculation, ``domains`` the
    ratios with speculation.
    """
    if fast is None:
        return [] if plain is None else [f"without speculation, ours is {_compared(plain, name)}"]
    text = f"with speculation, ours is {_compared(fast, name)}"
    if plain is not None:
        text += f"; without speculation, {plain:.2f} times"
    for opposite in ("slower", "faster"):
        if _kind(fast) != opposite and (found := _listed(domains, opposite)):
            return [f"{text}; but {found}"]
    return [text]


def _compared(ratio: float, name: str) -> str:
    kind = _kind(ratio)
    than = "as" if kind == "about as fast" else "than"
    return f"{kind} {than} {name}: {ratio:.2f} times its speed"


def _ceiling(domain: str, costs: RoundCosts, ceiling: Ceiling) -> str:
    text = (
        f"{domain}: a drafted token costs {_part(costs.c)} of a plainly decoded one, and its acceptance "
        f"rate is {ceiling.alpha:.0%} if all drafts before it were accepted; "
    )
    if ceiling.best_drafts == 0:
        return text + "at that rate no number of drafts beats plain decoding"
    measured = "" if ceiling.measured is None else f" (measured: {ceiling.measured:.2f})"
    return (
        f"{text}at these constant rates the best speedup is {ceiling.best_speedup:.2f}, with "
        f"{counted(ceiling.best_drafts, 'drafted token')} a round{measured}"
    )


def _part(share: float) -> str:
    """A share as a figure, with the unit fraction from a half to a tenth that is close, if any."""
    whole = round(1 / share) if share > 0 else 0
    if whole in _PARTS and abs(share * whole - 1) < 0.15:
        return f"about {_PARTS[whole]} ({share:.2f})"
    return f"{share:.2f}"


_NAMES = ("runs.jsonl", "bench.json", "bench.txt", "bench.png")
_ROUNDING = (
    "greedy texts in {dtype} may differ from transformers', and where passes aren't native, also "
    "between speculation and plain decoding: passes of different widths round differently, which can "
    "decide between two nearly tied tokens; --dtype float32 compares without this effect"
)
_PHASES = (
    "speeds are decode speeds: a reply's tokens after its first emission, divided by the time from the "
    "first emission to the last; that time includes our draft's prefill, but not that of transformers' "
    "draft"
)
_GGUF = (
    "llama.cpp decodes the GGUF file at the file's own precision: the comparison is fair only if its "
    "weights are not quantised and have the target's data type here"
)
_GRAMMAR = "the bundled models were trained on such text from a grammar, so it is easy to predict"


def analyse(results: Results) -> tuple[dict[str, RoundCosts], dict[str, Ceiling]]:
    """By domain: the costs of rounds, and the speedup formula's results for these costs."""
    runs = {
        domain: (
            [r.run for r in results.runs(domain, "own")],
            [r.run for r in results.runs(domain, "auto")],
        )
        for domain in results.domains
    }
    costs = costs_of(runs)
    ceilings = {
        domain: ceiling
        for domain, found in costs.items()
        if (ceiling := ceiling_of(found, runs[domain][1], results.ratio(domain, "auto", "own")))
    }
    return costs, ceilings


def document_of(results: Results, outcome: Outcome, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The whole result as JSON data, without the single runs."""
    costs, ceilings = analyse(results)
    formula = {}
    for domain, ceiling in ceilings.items():
        expected = results.figures[domain, "auto", ""].predicted_speedup
        formula[domain] = asdict(ceiling) | {"expected_by_engine": expected}
    return {
        "summary": rounded(results.summary()),
        "verdict": verdict_of(results, costs, ceilings),
        "domains": rounded(results.figures_by_domain()),
        "ratios": rounded(results.ratios_by_domain()),
        "costs": {domain: rounded(asdict(found)) for domain, found in costs.items()},
        "formula": rounded(formula),
        "concurrency": outcome.crowd,
        "complete": not outcome.cut_short,
        "cells": outcome.cells,
        "notes": [*_notes(results, outcome, provenance), *outcome.notes],
        "provenance": dict(provenance),
    }


def _notes(results: Results, outcome: Outcome, provenance: Mapping[str, Any]) -> list[str]:
    notes = [domains_note(results), _PHASES]
    if results.sampled:
        notes.append(
            "replies were sampled, with independent noise in each arm, so tokens aren't compared"
        )
    elif provenance["dtype"] in ("bfloat16", "float16"):
        notes.append(_ROUNDING.format(dtype=provenance["dtype"]))
    if results.settings("llama.cpp"):
        notes.append(_GGUF)
    if outcome.cut_short:
        replies = counted(outcome.cells, "reply", "replies")
        notes.append(f"incomplete, with {replies} of each arm: {outcome.cut_short}")
    notes += [f"{arm} failed and was left out: {how}" for arm, how in outcome.broken.items()]
    if provenance.get("target_padded"):
        notes.append(f"the target is padded: {provenance['target_padded']}")
    return notes


def domains_note(results: Results) -> str:
    """A note that names the domains of the geometric means, and says why the grammar's is left out."""
    over = results.mean_domains
    text = f"geometric means are over {', '.join(over)}"
    if GRAMMAR_DOMAIN in results.domains and GRAMMAR_DOMAIN not in over:
        text += f"; {GRAMMAR_DOMAIN} is left out: {_GRAMMAR}"
    return text


class Files:
    """The folder of results: ``runs.jsonl`` line by line, the other files at the end.

    Making this object creates the folder and tests that its files can be written. Files of an earlier
    run stay until they are replaced.

    Raises:
        OutputError: the folder or a file in it can't be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs: TextIO | None = None
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        for path in (folder / name for name in _NAMES):
            if path.exists():
                with writing(path), open(path, "r+b"):
                    pass

    def keep(self, record: Record) -> None:
        """Append one run to ``runs.jsonl``."""
        with writing(self.folder / "runs.jsonl"):
            if self._runs is None:
                self._runs = open(self.folder / "runs.jsonl", "w", encoding="utf-8")
            self._runs.write(json.dumps(record.to_dict()) + "\n")
            self._runs.flush()

    def write(self, document: Mapping[str, Any], table: list[str]) -> None:
        """Write ``bench.json`` and ``bench.txt``."""
        with writing(self.folder / "bench.json"):
            text = json.dumps(document, ensure_ascii=False, indent=1) + "\n"
            (self.folder / "bench.json").write_text(text, encoding="utf-8")
            (self.folder / "bench.txt").write_text("\n".join(table) + "\n", encoding="utf-8")

    def close(self) -> None:
        """Close the open file."""
        if self._runs is not None:
            with writing(self.folder / "runs.jsonl"):
                self._runs.close()
