"""``specstream bench``: compare speculation with plain decoding and with other libraries."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specstream.checks import writing
from specstream.commands.bench.plan import Plan, check_mode, plan_of
from specstream.commands.shared.output import note, print_json
from specstream.config import EngineConfig
from specstream.engine.engine import Engine

if TYPE_CHECKING:
    from specstream.bench.document import Files
    from specstream.bench.run import Outcome

__all__ = ["run"]


async def run(args: argparse.Namespace) -> None:
    """Measure, write the results to ``--out``, print the table and the verdict.

    When cancelled, the results so far are written and printed.

    Raises:
        ConfigError: a bad option or prompt file.
        ModelError: the pair can't be loaded.
        OutputError: the results can't be written.
    """
    check_mode(args)
    if args.conversation:
        from specstream.commands.bench.conversation import run_conversation

        await run_conversation(args)
        return
    if args.serve is not None:
        from specstream.commands.bench.serving import run_serving

        await run_serving(args)
        return
    if args.http:
        from specstream.commands.bench.serving import run_http

        await run_http(args)
        return
    if args.load is not None or args.callers is not None or args.capacity:
        from specstream.commands.bench.many import run_callers, run_capacity, run_load

        many = run_callers if args.callers is not None else run_capacity
        await (run_load(args) if args.load is not None else many(args))
        return
    from specstream.bench.document import Files

    plan = plan_of(args)
    with closing(Files(Path(args.out))) as files:
        from specstream.bench.load.padded import padded_target  # imports torch
        from specstream.bench.machine import settle_threads

        config, notes = await settle_threads(plan.config)
        if args.padded:
            note(f"padding the target to {args.padded}")
        async with padded_target(config, plan.padding) as (config, padded):
            await _measure(args, plan, config, padded, notes, files)


async def _measure(
    args: argparse.Namespace,
    plan: Plan,
    config: EngineConfig,
    padded: str,
    notes: list[str],
    files: Files,
) -> None:
    from specstream.bench.arms.open import CoreArm, EngineArm, Wanted, open_arms
    from specstream.bench.load.concurrency import measure_crowd
    from specstream.bench.load.padded import heads_for
    from specstream.bench.machine import load_average, provenance_of
    from specstream.bench.run import Budget, Faults, Outcome, cells, run_cells, warm_up
    from specstream.commands.shared.progress import Progress

    budget, params = Budget(plan.budget, time.perf_counter), plan.params
    outcome, at_once = Outcome(notes=notes), args.concurrency or 1
    origin: dict[str, Any] = {"load_average_before": load_average()}
    heads = heads_for(Path(config.target), plan.heads) if padded else plan.heads
    wanted = Wanted(plan.arms, args.quick, args.llama_cpp, notes, heads)
    faults, progress = Faults(), Progress(sys.stderr)
    note(f"loading the models ({config.dtype}; CPU threads: {config.threads})")
    try:
        async with open_arms(wanted, config) as arms:
            origin |= provenance_of(config, plan.told(args), plan.config.target, padded)
            origin["draft_weights"] = {a.name: asdict(a.weights) for a in arms if isinstance(a, CoreArm)}
            for line in notes:
                note(line)
            note(f"{origin['dtype']} on {origin['device']}; warming up {len(arms)} arms")
            tell, thorough = progress.phase("warm-up reply"), bool(config.compile)
            await warm_up(arms, plan.prompts, params, outcome, thorough=thorough, tell=tell)
            todo = list(cells(plan.prompts, args.repeats or 1))
            tell = progress.phase("prompt", lambda: budget.left)
            await run_cells(arms, todo, params, budget, outcome, tell=tell, keep=files.keep)
            progress.clear()
        if at_once > 1:
            note(f"{at_once} requests at once")
            tell = progress.phase("round")
            async with Engine(config) as engine:
                served = plan.prompts.prompts
                crowd = await measure_crowd(EngineArm(engine), served, params, at_once, tell=tell)
            outcome.crowd = crowd.to_dict()
    except BaseException as error:
        outcome.cut_short = outcome.cut_short or f"ended early ({type(error).__name__})"
        raise
    finally:
        progress.clear()
        notes += faults.end()
        if outcome.records:
            origin["load_average_after"] = load_average()
            _publish(outcome, origin, files, as_json=args.json)


def _publish(outcome: Outcome, origin: dict[str, Any], files: Files, *, as_json: bool) -> None:
    """Print the table and the verdict, and write them, the JSON document and the plots to ``files``.

    Raises:
        OutputError: a file can't be written.
    """
    from specstream.bench import plots
    from specstream.bench.document import document_of
    from specstream.bench.results import Results
    from specstream.bench.table import crowd_lines, heading_of, methods_table, table_of

    results = Results(outcome.records, sampled=origin["options"]["temperature"] > 0)
    document = document_of(results, outcome, origin)
    heading = heading_of(origin, outcome)
    lines = [*heading, *table_of(results), "", *methods_table(results, origin["draft_weights"])]
    lines += [*document["verdict"], *crowd_lines(outcome.crowd), ""]
    lines += [f"note: {said}" for said in document["notes"]]
    files.write(document, lines)
    if plots.can_plot():
        with writing(files.folder / "bench.png"):
            plots.draw_plots(results, files.folder / "bench.png", heading[0])
    else:
        note("no plots: matplotlib isn't installed (pip install matplotlib)")
    print("\n".join(lines), flush=True)
    note(f"written to {files.folder}/: {', '.join(sorted(p.name for p in files.folder.iterdir()))}")
    if as_json:
        print_json(document)
