"""The result as one JSON object, and the files of an experiment."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from specstream.bench.costs import Ceiling, Costs, ceiling_of, costs_of
from specstream.bench.records import Record
from specstream.bench.results import Results
from specstream.bench.run import Outcome
from specstream.bench.summary import domains_note, figures_by_domain, ratios_by_domain, summary_of
from specstream.bench.verdict import verdict_of
from specstream.errors import OutputError

__all__ = ["Files", "analyse", "document_of"]

_NAMES = ("runs.jsonl", "bench.json", "bench.txt", "bench.png")
_ROUNDING = (
    "greedy texts in {dtype} may differ from transformers', and with speculation from those without: a "
    "pass over several tokens rounds differently from a pass over one, so where two tokens are nearly "
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


def analyse(
    results: Results,
) -> tuple[dict[str, float | None], dict[str, Costs], dict[str, Ceiling]]:
    """The summary, and by domain what rounds cost and what the formula makes of it."""
    runs = {
        domain: tuple([r.run for r in results.runs(domain, arm)] for arm in ("own", "auto"))
        for domain in results.domains
    }
    costs = costs_of({domain: (plain, fast) for domain, (plain, fast) in runs.items()})
    ceilings: dict[str, Ceiling] = {}
    for domain, found in costs.items():
        measured = results.ratio(domain, "auto", "own")
        ceiling = ceiling_of(found, runs[domain][1], measured)
        if ceiling is not None:
            ceilings[domain] = ceiling
    return summary_of(results), costs, ceilings


def document_of(
    results: Results,
    outcome: Outcome,
    provenance: Mapping[str, Any],
    *,
    concurrency: Mapping[str, Any] | None = None,
    notes: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Everything but the single runs."""
    summary, costs, ceilings = analyse(results)
    said = [domains_note(results), _PHASES]
    if results.sampled:
        said.append("replies were sampled, each arm with noise of its own: tokens aren't compared")
    elif provenance["dtype"] in ("bfloat16", "float16"):
        said.append(_ROUNDING.format(dtype=provenance["dtype"]))
    if results.settings("llama.cpp"):
        said.append(_GGUF)
    if outcome.cut_short:
        times = "once" if outcome.cells == 1 else f"{outcome.cells} times"
        said.append(f"cut short when each arm had answered {times}: {outcome.cut_short}")
    said += outcome.broken_lines()
    if provenance.get("target_padded"):
        said.append(f"the target is padded: {provenance['target_padded']}")
    return {
        "summary": summary,
        "verdict": verdict_of(results, summary, costs, ceilings),
        "domains": figures_by_domain(results),
        "ratios": ratios_by_domain(results),
        "costs": {domain: found.to_dict() for domain, found in costs.items()},
        "formula": {
            domain: found.to_dict() | {"expected_by_engine": _expected(results, domain)}
            for domain, found in ceilings.items()
        },
        "concurrency": dict(concurrency) if concurrency else None,
        "complete": not outcome.cut_short,
        "cells": outcome.cells,
        "notes": [*said, *notes],
        "provenance": dict(provenance),
    }


def _expected(results: Results, domain: str) -> float | None:
    found = results.figures[domain, "auto", ""].predicted_speedup
    return None if found is None else round(found, 4)


class Files:
    """The folder that results go to: ``runs.jsonl`` as they come, the rest at the end.

    It is made, and tried, at once; what an earlier run left there stays until this one has something
    to put in its place.

    Raises:
        OutputError: the folder or a file in it can't be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs: TextIO | None = None
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        for path in (folder / name for name in _NAMES):
            if path.exists():
                with _writing(path), open(path, "r+b"):
                    pass

    def keep(self, record: Record) -> None:
        """Write one run down at once."""
        with _writing(self.folder / "runs.jsonl"):
            if self._runs is None:
                self._runs = open(self.folder / "runs.jsonl", "w", encoding="utf-8")
            self._runs.write(json.dumps(record.to_dict()) + "\n")
            self._runs.flush()

    def write(self, document: Mapping[str, Any], table: list[str]) -> None:
        """Write ``bench.json`` and ``bench.txt``."""
        with _writing(self.folder / "bench.json"):
            text = json.dumps(document, ensure_ascii=False, indent=1) + "\n"
            (self.folder / "bench.json").write_text(text, encoding="utf-8")
            (self.folder / "bench.txt").write_text("\n".join(table) + "\n", encoding="utf-8")

    def close(self) -> None:
        """Close the open file."""
        if self._runs is not None:
            with _writing(self.folder / "runs.jsonl"):
                self._runs.close()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"can't write {path}: {error.strerror or error}") from error
