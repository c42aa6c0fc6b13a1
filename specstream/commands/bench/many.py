"""``specstream bench --load`` and ``--callers``: many requests, or many callers, at once."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from specstream.bench.load.callers import ORDERS, figures, measure_callers
from specstream.bench.load.capacity import (
    BUSY,
    LISTENS,
    SPEAKS,
    capacity,
    measured_costs,
    measured_hearing,
)
from specstream.bench.load.concurrency import load_verdict, measure_load
from specstream.bench.machine import load_average
from specstream.bench.plots import can_plot, draw_callers, draw_load
from specstream.commands.bench.plan import plan_of
from specstream.commands.shared.common import engine_of
from specstream.commands.shared.output import note, print_json, write_json
from specstream.config import EngineConfig, parse_config
from specstream.engine.cores import cores_here, cpu_name
from specstream.engine.engine import Engine
from specstream.errors import ConfigError, OutputError

__all__ = ["run_callers", "run_capacity", "run_load"]

_MOST = 256  # requests, or callers, at once
_LOAD_TOKENS = 96  # longest reply, without --max-tokens
_CALLER_TOKENS = 256


async def run_load(args: argparse.Namespace) -> None:
    """Measure tokens a second with and without speculation by load. Cancelling it prints nothing.

    Raises:
        ConfigError: a bad option.
        ModelError: the pair can't be loaded.
        OutputError: the results can't be written.
    """
    counts, plan = _counts("--load", args.load), plan_of(args)
    changed = plan.config.model_dump()
    changed["max_running"] = max(counts)
    config = parse_config(changed)
    params = replace(plan.params, max_tokens=args.max_tokens or _LOAD_TOKENS)
    note(f"loading the models ({config.dtype})")
    async with Engine(config) as engine:
        loads = await measure_load(engine, plan.prompts.prompts, params, counts, args.repeats or 1, note)
        why = await engine.explain()
    document = {
        **_origin(args, config),
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "loads": [load.to_dict() for load in loads],
        "explanation": why.words if why is not None else "",
    }
    place = _written(args, "load", document)
    if can_plot():
        _drawn(lambda file: draw_load(loads, file, Path(config.target).name), place.with_suffix(".png"))
    if args.json:
        print_json(document)
        return
    head = "at once|shape|off, tokens/s|auto, tokens/s|ratio|predicted|first token p99, ms|gap p99, ms"
    _print_head(head.split("|"))
    for found in document["loads"]:
        auto, off = found["auto"], found["off"]
        print(
            f"| {found['at_once']} | {found['shape']} | {off['tokens_per_second']:.0f} | "
            f"{auto['tokens_per_second']:.0f} | {found['ratio']:.2f} | "
            f"{auto['predicted_speedup_p50'] or 1.0:.2f} | "
            f"{off['ttft_ms_p99']:.0f} / {auto['ttft_ms_p99']:.0f} | "
            f"{off['gap_ms_p99']:.0f} / {auto['gap_ms_p99']:.0f} |"
        )
    print(load_verdict(loads))


async def run_callers(args: argparse.Namespace) -> None:
    """Measure first audio and gaps of callers at once, and a capacity. Cancelling it prints nothing.

    Raises:
        ConfigError: a bad option, or the server can't start.
        AdapterUnavailable: there is no voice here.
        OutputError: the results can't be written.
    """
    from specstream.commands.shared.chain import load_voice

    counts = _counts("--callers", args.callers)
    await load_voice("auto").aclose()  # a missing one is reported before the models are loaded
    config, tokens = engine_of(args).config, args.max_tokens or _CALLER_TOKENS
    found, costs = await measure_callers(config, "auto", counts, args.repeats or 1, tokens, note)
    rows = [
        {"at_once": count, "order": order, **figures(mine)}
        for count in counts
        for order in ORDERS
        if (mine := [c for c in found if (c.at_once, c.order) == (count, order)])
    ]
    note("simulating the capacity in virtual time")
    kept = {order: capacity(costs, order) for order in ORDERS}
    document: dict[str, Any] = {
        **_origin(args, config),
        "max_tokens": tokens,
        "callers": rows,
        "costs_s": {name: round(value, 5) for name, value in asdict(costs).items()},
        "capacity": {order: asdict(one) for order, one in kept.items()},
    }
    place = _written(args, "callers", document)
    if can_plot():
        name = Path(config.target).name
        _drawn(lambda file: draw_callers(found, file, name), place.with_suffix(".png"))
    if args.json:
        print_json(document)
        return
    _print_head(["callers", "order", "first audio, s: median", "worst", "late", "worst gap, s"])
    for row in rows:
        print(
            f"| {row['at_once']} | {row['order']} | {row['first_audio_s_p50']:.2f} | "
            f"{row['first_audio_s_max']:.2f} | {row['late']} of {row['callers']} | "
            f"{row['late_s_max']:.2f} |"
        )
    for order, one in kept.items():
        print(
            f"capacity, {order} order (virtual time, no gap, 99 % hear the first sound within 1 s): "
            f"{one.replies_per_minute:g} questions a minute, {one.listeners:g} listeners at once"
        )


async def run_capacity(args: argparse.Namespace) -> None:
    """Measure what text, speech and recognition cost, and print how many conversations that makes.

    Raises:
        ModelError, AdapterError: a part can't be loaded.
        OutputError: the results can't be written.
    """
    import torch

    from specstream.commands.serve import load_ears
    from specstream.commands.shared.chain import load_voice

    config, voice, ears = engine_of(args).config, load_voice("auto"), load_ears("auto")
    try:
        async with Engine(config) as engine:
            note("measuring passes, prompts and phrases")
            costs, threads = await measured_costs(engine, voice), torch.get_num_threads()
        if ears is not None:
            heard = {"hearers": ears.recognizer.capabilities.workers}
            costs = replace(costs, hearing_s=await measured_hearing(ears, voice), **heard)
    finally:
        await voice.aclose()
        if ears is not None:
            await ears.aclose()
    note("simulating the capacity in virtual time")
    kept, cores = capacity(costs, "play-out"), cores_here()
    parts = costs.conversation(cores=cores, threads=threads)
    parts["first sound within 1 s"] = kept.listeners / SPEAKS
    scarce = min(parts, key=parts.__getitem__)
    document: dict[str, Any] = {
        **_origin(args, config),
        "cores": cores,
        "threads": threads,
        "costs_s": {name: round(value, 5) for name, value in asdict(costs).items()},
        "conversations": {name: round(value, 1) for name, value in parts.items()},
        "limit": scarce,
    }
    _written(args, "capacity", document)
    if args.json:
        print_json(document)
        return
    _print_head(["cost", "ms"])
    for cost, seconds in (
        (f"a token, {costs.places} replies side by side", costs.pass_s / costs.places + costs.row_s),
        ("reading a question", costs.prompt_s),
        ("a phrase of the voice, before its sound", costs.phrase_s),
        ("a second of sound", costs.sound_s),
        ("a second of the user's speech", costs.hearing_s),
    ):
        print(f"| {cost} | {1e3 * seconds:.1f} |")
    _print_head(["limit", "conversations at once"])
    for name, value in parts.items():
        print(f"| {name} | {value:.0f} |")
    print(
        f"at most about {int(parts[scarce])} conversations at once on these {cores} cores, by the limit "
        f"of {scarce!r}: the agent speaks {SPEAKS:.0%} of the time, the user {LISTENS:.0%}, and no part "
        f"is busy more than {BUSY:.0%}"
    )


def _print_head(names: list[str]) -> None:
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")


def _counts(option: str, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    counts = [int(part) for part in parts if part.isascii() and part.isdigit()]
    if not counts or len(counts) != len(parts) or not all(1 <= count <= _MOST for count in counts):
        raise ConfigError(f"{option} takes numbers from 1 to {_MOST}, such as 1,4,16; not {text!r:.80}")
    return counts


def _origin(args: argparse.Namespace, config: EngineConfig) -> dict[str, Any]:
    return {
        "target": Path(config.target).name,
        "proposer": config.proposer.kind,
        "cpu": cpu_name(),
        "load_average": load_average(),
        "rounds": args.repeats or 1,
    }


def _written(args: argparse.Namespace, name: str, document: dict[str, Any]) -> Path:
    place = Path(args.out) / f"{name}.json"
    write_json(place, document)
    note(f"written to {place}")
    return place


def _drawn(draw: Any, file: Path) -> None:
    try:
        draw(file)
    except OSError as error:
        raise OutputError(f"can't write {file}: {error.strerror or error}") from None
