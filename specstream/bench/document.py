"""The result as one JSON object, and the files of an experiment."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from specstream.bench.aggregates import rounded
from specstream.bench.costs import Ceiling, RoundCosts, ceiling_of, costs_of
from specstream.bench.prompts import GRAMMAR_DOMAIN
from specstream.bench.records import Record
from specstream.bench.results import Results
from specstream.bench.run import Outcome
from specstream.bench.verdict import verdict_of
from specstream.wording import counted, writing

__all__ = ["Files", "analyse", "document_of", "domains_note"]

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


def document_of(
    results: Results, outcome: Outcome, provenance: Mapping[str, Any]
) -> dict[str, Any]:
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
