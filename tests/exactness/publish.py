"""Recomputes the figures of docs/figures/exactness.md: ``python -m tests.exactness.publish PART …``.

Each part prints one JSON object a line, as it gets them.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers

from specstream import __version__
from specstream.bench.exactness import checks as greedy, enumeration as gtest
from specstream.bench.prompts import read_prompts
from specstream.config import EngineConfig
from specstream.engine.build import build_engine
from tests.exactness import bugs, cells, cost, peers, scale

__all__ = ["PARTS", "main"]

DTYPES = ("float32", "bfloat16")


def _row(result: gtest.GTest) -> dict[str, Any]:
    return {
        "n": result.n,
        "df": result.df,
        "p": result.p_value,
        "tv": round(result.tv, 4),
        "tv_of_chance": round(result.noise, 4),
        "detectable_tv": round(result.detectable, 4),
    }


def engine_cells(n: int) -> Iterator[dict[str, Any]]:
    """Every covering cell, then the verdict over all of them."""
    chosen = cells.covering_cells()
    p_values = []
    for cell in chosen:
        result = cells.run_cell(cell, n, first_seed=10**6)
        p_values.append(result.p_value)
        yield {"cell": str(cell), **_row(result)}
    rejected = sum(gtest.holm(p_values))
    yield {"cells": len(chosen), "rejected": rejected, "smallest_p": min(p_values)}


def key_cells(n: int) -> Iterator[dict[str, Any]]:
    """One cell a rule, with many samples."""
    for rule in ("ratio", "block", "reproducible"):
        cell = cells.Cell(rule=rule, batch="32", k="varying")
        yield {"cell": str(cell), **_row(cells.run_cell(cell, n * 9, first_seed=10**6))}


def teeth(n: int) -> Iterator[dict[str, Any]]:
    """Every planted bug, and what is harmless."""
    for kind, table in (("bug", bugs.BUGS), ("harmless", bugs.HARMLESS)):
        for name, bug in table.items():
            yield {kind: name, "cell": str(bug.cell), **_row(bugs.run_bug(bug, min(n, 2000)))}


def greedy_text(n: int) -> Iterator[dict[str, Any]]:
    """The bundled pair on every prompt, in both dtypes; replies are kept going."""
    prompts = [(p.id, list(p.messages), p.reference) for p in read_prompts().prompts]
    for dtype in DTYPES:
        core = build_engine(EngineConfig(dtype=dtype))  # type: ignore[arg-type]
        report = greedy.compare_greedy(core, prompts, max_tokens=180, min_tokens=180)
        yield {"dtype": dtype, "holds": report.holds, **report.to_dict()}


def bits(n: int) -> Iterator[dict[str, Any]]:
    """The reproducible mode at scale, and over a restart."""
    jobs = max(2, n // 40)
    for dtype in DTYPES:
        counts = scale.count_identical(getattr(torch, dtype), jobs)
        counts["another process"] = scale.in_a_new_process(getattr(torch, dtype), max(2, jobs // 5))
        same, total = (sum(column) for column in zip(*counts.values(), strict=True))
        yield {"dtype": dtype, "identical": same, "runs": total, "ways": counts}


def mode_cost(n: int) -> Iterator[dict[str, Any]]:
    """Tokens a second in either mode, bundled pair, one thread."""
    prompts = [list(prompt.messages) for prompt in read_prompts().prompts[::13]]
    for dtype in DTYPES:
        yield cost.measure_cost(dtype, prompts, repeats=5)


def peer_results(n: int) -> Iterator[dict[str, Any]]:
    """Others under the same test."""
    for name, result in peers.run_peers(max(200, n // 3)):
        yield {"peer": name, **(_row(result) if isinstance(result, gtest.GTest) else result)}


PARTS: dict[str, Callable[[int], Iterator[dict[str, Any]]]] = {
    "cells": engine_cells,
    "key": key_cells,
    "teeth": teeth,
    "greedy": greedy_text,
    "bits": bits,
    "cost": mode_cost,
    "peers": peer_results,
}


def main(argv: list[str] | None = None) -> None:
    """Run the parts that are named, or all."""
    parser = argparse.ArgumentParser(prog="scripts/exactness", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--n", type=int, default=6000, help="samples a cell (default: 6000)")
    args = parser.parse_args(argv)
    unknown = [part for part in args.parts if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}; known: {', '.join(PARTS)}")
    torch.set_num_threads(1)
    where = {
        "specstream": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
    }
    _print(where)
    for part in args.parts or PARTS:
        for line in PARTS[part](args.n):
            _print({"part": part, **line})


def _print(values: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(values, ensure_ascii=False) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
