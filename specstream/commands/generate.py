"""``specstream generate``: print one text reply."""

from __future__ import annotations

import argparse
import sys

from specstream.commands.shared.common import engine_of, messages_of, params_of
from specstream.commands.shared.output import note, print_json, print_reply, shades, tell_report
from specstream.commands.shared.progress import loaded

__all__ = ["run"]


async def run(args: argparse.Namespace) -> None:
    """Write one reply to stdout as it is generated."""
    engine, params, messages = engine_of(args), params_of(args), messages_of(args)
    async with loaded(engine), engine.generate(messages, params) as chunks:
        await print_reply(chunks, show_runs=args.show_runs or shades(sys.stdout))
        report = chunks.report
    for line in tell_report(report, params.max_tokens):
        note(line)
    if args.json:
        print_json(report.to_dict())
