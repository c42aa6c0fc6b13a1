"""The result as one JSON object, and the files of an experiment."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from specstream.bench.costs import Ceiling, Costs, ceiling_of, costs_of
from specstream.bench.prompts import GRAMMAR_DOMAIN
from specstream.bench.records import Record
from specstream.bench.results import Results
from specstream.bench.run import Outcome
from specstream.bench.verdict import verdict_of
from specstream.wording import writing

__all__ = ["Files", "analyse", "document_of", "domains_note"]

_NAMES = ("runs.jsonl", "bench.json", "bench.txt", "bench.png")
_ROUNDING = (
    "greedy texts in {dtype} may differ from transformers', and where passes aren't native, with "
    "speculation from those without: other passes round differently, so where two tokens are nearly "
    "tied the choice falls either way; --dtype float32 shows how they compare without that"
)
_PHASES = (
    "speeds are of decoding: a reply's tokens after its first emission over the time from the first "
    "emission to the last; our draft reads the prompt within that time, transformers' before it"
)
_GGUF = (
    "llama.cpp decodes the GGUF file at that file's own precision: weights that are quantised, or of "
    "another type than the target's here, are not like for like"
)
_GRAMMAR = (
    "the bundled models learned such text from a grammar, so it is predictable by construction"
)


def analyse(results: Results) -> tuple[dict[str, Costs], dict[str, Ceiling]]:
    """By domain: what rounds cost, and what the speedup formula says of these costs."""
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


def document_of(
    results: Results,
    outcome: Outcome,
    provenance: Mapping[str, Any],
    *,
    concurrency: Mapping[str, Any] | None = None,
    notes: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Everything but the single runs."""
    costs, ceilings = analyse(results)
    formula = {}
    for domain, ceiling in ceilings.items():
        expected = results.figures[domain, "auto", ""].to_dict()["predicted_speedup"]
        formula[domain] = ceiling.to_dict() | {"expected_by_engine": expected}
    return {
        "summary": results.summary(),
        "verdict": verdict_of(results, costs, ceilings),
        "domains": results.figures_by_domain(),
        "ratios": results.ratios_by_domain(),
        "costs": {domain: found.to_dict() for domain, found in costs.items()},
        "formula": formula,
        "concurrency": dict(concurrency) if concurrency else None,
        "complete": not outcome.cut_short,
        "cells": outcome.cells,
        "notes": [*_notes(results, outcome, provenance), *notes],
        "provenance": dict(provenance),
    }


def _notes(results: Results, outcome: Outcome, provenance: Mapping[str, Any]) -> list[str]:
    notes = [domains_note(results), _PHASES]
    if results.sampled:
        notes.append("replies were sampled, each arm with noise of its own: tokens aren't compared")
    elif provenance["dtype"] in ("bfloat16", "float16"):
        notes.append(_ROUNDING.format(dtype=provenance["dtype"]))
    if results.settings("llama.cpp"):
        notes.append(_GGUF)
    if outcome.cut_short:
        times = "once" if outcome.cells == 1 else f"{outcome.cells} times"
        notes.append(f"cut short when each arm had answered {times}: {outcome.cut_short}")
    notes += [f"{arm} broke and was left out: {how}" for arm, how in outcome.broken.items()]
    if provenance.get("target_padded"):
        notes.append(f"the target is padded: {provenance['target_padded']}")
    return notes


def domains_note(results: Results) -> str:
    """Which domains the means are over, and why not the grammar's."""
    over = results.mean_domains
    text = f"geometric means are over {', '.join(over)}"
    if GRAMMAR_DOMAIN in results.domains and GRAMMAR_DOMAIN not in over:
        text += f"; {GRAMMAR_DOMAIN} stands apart: {_GRAMMAR}"
    return text


class Files:
    """The folder of results: ``runs.jsonl`` line by line, the other files at the end.

    The folder is made and tested at once. Files of an earlier run stay until they are replaced.

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
