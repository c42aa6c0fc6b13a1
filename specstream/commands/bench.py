"""``specstream bench``: the same prompts with and without speculation, and by others."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specstream.commands.common import note, print_json, writing
from specstream.config import EngineConfig
from specstream.session import Engine

if TYPE_CHECKING:
    from specstream.bench.document import Files
    from specstream.bench.run import Outcome
    from specstream.commands.bench_plan import Plan

__all__ = ["add_bench_options", "run"]


def add_bench_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command alone."""
    add = parser.add_argument
    add("--quick", action="store_true", help="few prompts, short replies: done within 5 minutes")
    add("--prompts", metavar="FILE", help='JSON lines {"id", "domain", "messages", "reference"}')
    add("--domains", metavar="A,B", default="", help="only these domains")
    add("--limit", type=int, metavar="N", help="at most N prompts a domain")
    add("--repeats", type=int, default=1, metavar="N", help="every prompt so often (default: 1)")
    add(
        "--arms",
        metavar="A,B",
        help="own (no speculation), auto (as configured), draft-K, ngram, generate, assisted, lookup, "
        "or all (default: own,auto,generate,assisted,lookup)",
    )
    add(
        "--threads",
        type=int,
        metavar="N",
        help="CPU threads of every arm (default: all cores, fewer if they are busy)",
    )
    add("--concurrency", type=int, metavar="N", help="also N requests at once, beside one by one")
    add(
        "--padded", metavar="SIZE[:LAYERS]", help="pad the target to this cost, such as 100M, 8B:32"
    )
    add(
        "--llama-cpp",
        metavar="FILE",
        help="also compare with llama.cpp on this GGUF file of the target (needs llama-cpp-python)",
    )
    add("--budget", type=float, metavar="SECONDS", help="stop adding cells after this time")
    add("--out", default="bench-out", metavar="DIR", help="where results go (default: bench-out)")


async def run(args: argparse.Namespace) -> None:
    """Measure, write the results to ``--out``, print the table and the verdict.

    Cancelling it keeps what was measured.

    Raises:
        ConfigError: a bad option or prompt file.
        ModelError: the pair can't be loaded.
        OutputError: the results can't be written.
    """
    from specstream.bench.document import Files
    from specstream.commands.bench_plan import plan_of

    plan = plan_of(args)
    files = Files(Path(args.out))
    from specstream.bench.prepare import padded_target, settle_threads  # imports torch

    try:
        config, notes = await settle_threads(plan.config)
        if args.padded:
            note(f"padding the target to {args.padded}")
        async with padded_target(config, args.padded) as (config, padded):
            await _measure(args, plan, config, padded, notes, files)
    finally:
        files.close()


async def _measure(
    args: argparse.Namespace,
    plan: Plan,
    config: EngineConfig,
    padded: str,
    notes: list[str],
    files: Files,
) -> None:
    from specstream.bench.arms.engine import EngineArm
    from specstream.bench.arms.open import Wanted, open_arms
    from specstream.bench.concurrency import measure_crowd
    from specstream.bench.prepare import Faults
    from specstream.bench.progress import Progress
    from specstream.bench.provenance import load_average, provenance_of
    from specstream.bench.run import Outcome, run_cells, warm_up
    from specstream.bench.schedule import Budget, cells

    budget = Budget(plan.budget, time.perf_counter)
    outcome, crowd = Outcome(), None
    origin: dict[str, Any] = {"load_average_before": load_average()}
    wanted = Wanted(plan.arms, args.quick, args.llama_cpp, notes)
    faults, progress = Faults(), Progress(sys.stderr)
    note(f"loading the models ({config.dtype}; CPU threads: {config.threads})")
    try:
        async with open_arms(wanted, config) as arms:
            origin |= provenance_of(config, _options(args, plan), plan.config.target, padded)
            for line in notes:
                note(line)
            note(f"{origin['dtype']} on {origin['device']}; warming up {len(arms)} arms")
            compiled, tell = config.compile, progress.phase("warm-up reply")
            await warm_up(arms, plan.prompts, plan.ask, outcome, thorough=compiled, tell=tell)
            todo = list(cells(plan.prompts, plan.repeats))
            tell = progress.phase("prompt", lambda: budget.left)
            await run_cells(arms, todo, plan.ask, budget, outcome, tell=tell, keep=files.keep)
            progress.clear()
        if plan.at_once > 1:
            note(f"{plan.at_once} requests at once")
            async with Engine(config) as engine:
                arm, prompts = EngineArm(engine), plan.prompts.prompts
                tell = progress.phase("round")
                found = await measure_crowd(arm, prompts, plan.ask, plan.at_once, tell=tell)
            crowd = found.to_dict()
    except BaseException as error:
        outcome.cut_short = outcome.cut_short or f"ended early ({type(error).__name__})"
        raise
    finally:
        progress.clear()
        notes += faults.end()
        if outcome.records:
            origin["load_average_after"] = load_average()
            _publish(args, outcome, origin, crowd, notes, files)


def _publish(
    args: argparse.Namespace,
    outcome: Outcome,
    origin: dict[str, Any],
    crowd: dict[str, Any] | None,
    notes: list[str],
    files: Files,
) -> None:
    from specstream.bench.document import document_of
    from specstream.bench.plots import can_plot, draw_plots
    from specstream.bench.results import Results
    from specstream.bench.table import crowd_lines, heading_of, table_of

    results = Results(outcome.records, sampled=origin["options"]["temperature"] > 0)
    document = document_of(results, outcome, origin, concurrency=crowd, notes=tuple(notes))
    lines = [*heading_of(origin, outcome), *table_of(results, document["summary"]), ""]
    lines += [*document["verdict"], *crowd_lines(crowd), ""]
    lines += [f"note: {said}" for said in document["notes"]]
    files.write(document, lines)
    if can_plot():
        with writing(files.folder / "bench.png"):
            draw_plots(results, files.folder / "bench.png", heading_of(origin, outcome)[0])
    else:
        note("no plots: matplotlib isn't installed (pip install matplotlib)")
    print("\n".join(lines), flush=True)
    note(f"written to {files.folder}/: {', '.join(sorted(p.name for p in files.folder.iterdir()))}")
    if args.json:
        print_json(document)


def _options(args: argparse.Namespace, plan: Plan) -> dict[str, Any]:
    given = {k: v for k, v in vars(args).items() if k not in ("run", "command", "json", "out")}
    given["prompts"] = {
        "file": plan.prompts.name,
        "sha256": plan.prompts.sha256,
        "domains": {d: len(plan.prompts.of(d)) for d in plan.prompts.domains},
    }
    given |= {"arms": plan.arms, "max_tokens": plan.ask.max_tokens, "budget": plan.budget}
    given["temperature"] = plan.ask.temperature
    plain: dict[str, Any] = json.loads(json.dumps(given, default=str))
    return plain
