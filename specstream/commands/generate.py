"""``specstream generate``: text only."""

from __future__ import annotations

import argparse
import sys

from specstream.commands.common import engine_of, messages_of, note, params_of, print_json
from specstream.commands.loading import loaded
from specstream.commands.show import RunPrinter, tell_report

__all__ = ["run"]


async def run(args: argparse.Namespace) -> None:
    """Write one reply to stdout as it comes."""
    engine, params, messages = engine_of(args), params_of(args), messages_of(args)
    printer = RunPrinter(sys.stdout, show_runs=args.show_runs or sys.stdout.isatty())
    async with loaded(engine), engine.generate(messages, params) as chunks:
        try:
            async for chunk in chunks:
                printer.add(chunk)
                printer.check()
        finally:
            printer.end()
        report = chunks.report
    for line in tell_report(report, params.max_tokens):
        note(line)
    if args.json:
        print_json(report.to_dict())
