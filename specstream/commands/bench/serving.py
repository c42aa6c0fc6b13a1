"""``specstream bench --serve N`` and ``--http``: what the server costs, beside less than it."""

from __future__ import annotations

import argparse
import platform
import statistics
from pathlib import Path
from typing import Any

from specstream.bench.load.serving import PER_S, measure_http, measure_serving
from specstream.commands.bench.plan import plan_of
from specstream.commands.shared.output import note, print_json, write_json
from specstream.engine.engine import Engine
from specstream.errors import ConfigError

__all__ = ["run_http", "run_serving"]

_SECONDS = 10.0  # of each measurement
_ROUNDS = 2
_HTTP_PROMPTS, _HTTP_TOKENS, _HTTP_ROUNDS = 2, 128, 3  # prompts of each domain
_MOST_SESSIONS = 2_000  # sessions; each takes a socket on both sides


async def run_http(args: argparse.Namespace) -> None:
    """Measure chat completions over HTTP beside the Python API. Cancelling it prints nothing.

    Raises:
        ConfigError: a bad option.
        ModelError: the pair can't be loaded.
        OutputError: the results can't be written.
    """
    plan = plan_of(args)
    prompts = [list(one.messages) for one in plan.prompts.prompts]
    if args.limit is None:
        domains = plan.prompts.domains
        prompts = [list(p.messages) for d in domains for p in plan.prompts.of(d)[:_HTTP_PROMPTS]]
    rounds = args.repeats or _HTTP_ROUNDS
    tokens = args.max_tokens or _HTTP_TOKENS
    async with Engine(plan.config) as engine:
        ways = await measure_http(engine, prompts, tokens, rounds, note)
    python, http = ways["python"], ways["http"]
    pairs = zip(http.first_s, python.first_s, strict=True)
    later = statistics.median([1e3 * (one - other) for one, other in pairs])
    document: dict[str, Any] = {
        "target": plan.config.target,
        "max_tokens": tokens,
        "replies": len(http.tokens),
        "same_tokens": http.tokens == python.tokens,
        "ways": {name: way.to_dict() for name, way in ways.items()},
        "rate_ratio": round(http.rate / python.rate, 4),
        "first_later_ms": round(later, 2),
    }
    if (place := _written(args, "http", document)) is None:
        return
    print(f"{document['replies']} replies each, at most {tokens} tokens; {place} has the figures")
    print("| way | tokens a second | first text (ms) |\n|---|---|---|")
    for name, way in document["ways"].items():
        print(f"| {name} | {way['tokens_per_second']} | {way['first_ms']} |")
    print(f"over HTTP: {document['rate_ratio']}x the tokens a second, first text {later:.2f} ms later")


def _written(args: argparse.Namespace, name: str, document: dict[str, Any]) -> Path | None:
    """Write the figures, and print them as JSON if that was asked for; then None."""
    place = Path(args.out) / f"{name}.json"
    write_json(place, document)
    if args.json:
        print_json(document)
        return None
    return place


async def run_serving(args: argparse.Namespace) -> None:
    """Measure and print CPU time per event and gaps between deltas. Cancelling it prints nothing.

    Raises:
        ConfigError: a number of sessions out of range, or a system that doesn't tell CPU times.
        OutputError: the results can't be written.
    """
    if not 1 <= args.serve <= _MOST_SESSIONS:
        raise ConfigError(f"--serve must be a number of sessions from 1 to {_MOST_SESSIONS}")
    if platform.system() == "Windows":
        raise ConfigError("--serve needs the CPU time of processes, which Windows doesn't tell")
    rounds = args.repeats or _ROUNDS
    figures = await measure_serving(args.serve, _SECONDS, rounds, note)
    document: dict[str, Any] = {
        "sessions": args.serve,
        "deltas_per_second_each": PER_S,
        "seconds": _SECONDS * rounds,
        "arms": [
            {"server": arm, "loop": loop, **served.to_dict()} for (arm, loop), served in figures.items()
        ],
    }
    if (place := _written(args, "serving", document)) is None:
        return
    print(f"{args.serve} sessions, {PER_S:g} deltas a second each; {place} has the figures")
    print("| server | event loop | CPU an event (µs) | gap p50 (ms) | gap p99 (ms) |")
    print("|---|---|---|---|---|")
    shown = ("server", "loop", "cpu_us_per_event", "gap_ms_p50", "gap_ms_p99")
    for found in document["arms"]:
        print(f"| {' | '.join(str(found[name]) for name in shown)} |")
