"""``specstream bench --serve N``: the cost of the Realtime server itself, beside a bare WebSocket."""

from __future__ import annotations

import argparse
import platform
from pathlib import Path
from typing import Any

from specstream.bench.load.serving import PER_S, measure_serving
from specstream.commands.output import note, print_json, write_json
from specstream.errors import ConfigError

__all__ = ["run_serving"]

_SECONDS = 10.0  # of each measurement
_ROUNDS = 2
_MOST_SESSIONS = 2_000  # sessions; each takes a socket on both sides


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
    rounds = args.repeats if args.repeats > 1 else _ROUNDS
    figures = await measure_serving(args.serve, _SECONDS, rounds, note)
    document: dict[str, Any] = {
        "sessions": args.serve,
        "deltas_per_second_each": PER_S,
        "seconds": _SECONDS * rounds,
        "arms": {arm: served.to_dict() for arm, served in figures.items()},
    }
    place = Path(args.out) / "serving.json"
    write_json(place, document)
    if args.json:
        print_json(document)
        return
    print(f"{args.serve} sessions, {PER_S:g} deltas a second each; {place} has the figures")
    print("| server | CPU an event (µs) | gap p50 (ms) | gap p99 (ms) |\n|---|---|---|---|")
    for arm, found in document["arms"].items():
        print(
            f"| {arm} | {found['cpu_us_per_event']} | {found['gap_ms_p50']} | {found['gap_ms_p99']} |"
        )
