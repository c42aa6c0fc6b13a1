"""``specstream train``: train a draft model or a drafting head for a target."""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specstream.commands.interrupts import ends_at_once
from specstream.commands.output import note, print_json
from specstream.commands.progress import Progress
from specstream.config import DEFAULT_TARGET
from specstream.errors import ConfigError, TrainingStopped
from specstream.train.kinds import KINDS
from specstream.train.options import TrainOptions

if TYPE_CHECKING:
    from specstream.train.trained import Trained

__all__ = ["add_train_options", "run"]

_EVERY_S = 10.0


def add_train_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("kind", choices=list(KINDS), help="what is trained")
    add = parser.add_argument
    add("--out", required=True, metavar="FOLDER", type=Path, help="the folder to make")
    add("--target", default=DEFAULT_TARGET, metavar="MODEL", help="default: the bundled one")
    data = 'prompts, JSON lines with "messages" or "prompt", or plain text'
    add("--data", metavar="FILE", type=Path, help=data)
    add("--eval", metavar="FILE", type=Path, help="held-out prompts (default: a part of --data)")
    add(
        "--replies",
        metavar="FOLDER",
        type=Path,
        help="stored replies with hidden states, used instead of --data",
    )
    add("--init", metavar="FOLDER", type=Path, help="start from an earlier training's result")
    add(
        "--minutes",
        type=float,
        default=15.0,
        metavar="N",
        help="time limit for writing replies and training together (default: 15)",
    )
    add("--steps", type=int, metavar="N", help="training steps, instead of a time limit")
    add(
        "--tokens",
        type=int,
        metavar="N",
        help="tokens of replies to write, instead of a part of the time",
    )
    add("--max-reply", type=int, default=256, metavar="N", help="longest reply (default: 256)")
    add("--size", default="", metavar="LAYERSxWIDTH", help="size of a draft model, such as 2x192")
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the method; repeatable",
    )
    add("--optimizer", choices=["auto", "muon", "adamw"], default="auto")
    add("--lr", type=float, help="peak learning rate")
    add("--batch-tokens", type=int, metavar="N", help="tokens in a training step, about")
    add("--seed", type=int, default=0)
    add("--threads", type=int, metavar="N", help="CPU threads (default: all cores but one)")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1 …")
    add("--dtype", choices=["auto", "float32", "bfloat16"], default="auto")
    add("--keep", action="store_true", help="keep replies and checkpoint in FOLDER.training")
    add("--force", action="store_true", help="replace FOLDER and what is in FOLDER.training")
    add("--json", action="store_true", help="one JSON object as the last line of stdout")


async def run(args: argparse.Namespace) -> None:
    """Train, with a progress line, and print the table.

    When cancelled, as by an interrupt, the state of the training is saved first.

    Raises:
        SpecstreamError: see `specstream.train.run.train`.
    """
    options = _options(args)
    with ends_at_once():
        from specstream.train.run import train
        from specstream.train.trained import as_json, table_of
    stopped, shown = threading.Event(), _Shown(sys.stderr, every=_EVERY_S)
    work = asyncio.get_running_loop().run_in_executor(
        None, lambda: train(options, shown.tell, stopped.is_set)
    )
    try:
        trained: Trained = await asyncio.shield(work)
    except asyncio.CancelledError:
        stopped.set()
        await _told(work, shown)
        raise
    finally:
        shown.clear()
    for line in table_of(trained):
        print(line)
    note(f"use it: specstream chat --target {options.target} --draft {options.out}")
    if args.json:
        print_json(as_json(trained))


async def _told(work: asyncio.Future[Trained], shown: _Shown) -> None:
    """Wait until the training has saved its state, and print how to continue."""
    try:
        await work
    except TrainingStopped as error:
        shown.clear()
        note(f"specstream: {error}")


def _options(args: argparse.Namespace) -> TrainOptions:
    values: dict[str, Any] = {
        name: getattr(args, name)
        for name in TrainOptions.__dataclass_fields__
        if hasattr(args, name)
    }
    settings = {}
    for text in args.set:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set {text}: give NAME=VALUE")
        settings[name] = value
    return TrainOptions(**values, settings=settings)


class _Shown(Progress):
    """Shows a line for each stage of the training, and its progress."""

    def tell(self, what: str, done: float, says: str) -> None:
        self.stage(what)
        bar = "#" * round(done * 20)
        self.show(f"{what} {done:4.0%} [{bar:.<20}] {says}")
