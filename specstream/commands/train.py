"""``specstream train``: train a draft model or a drafting head for a target."""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specstream.commands.shared.output import note, print_json
from specstream.commands.shared.progress import Progress, forecast
from specstream.commands.shared.terminal import adding_to, ends_at_once
from specstream.config import DEFAULT_TARGET
from specstream.errors import ConfigError, TrainingStopped
from specstream.training.inputs import check_inputs
from specstream.training.options import KINDS, TrainOptions

if TYPE_CHECKING:
    from specstream.training.output import Trained

__all__ = ["TrainingLine", "add_train_options", "run"]

_EVERY_S = 10.0


def add_train_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = adding_to(parser)
    add("kind", "what is trained", choices=list(KINDS))
    add("--out FOLDER", "the folder to make", required=True, type=Path)
    add("--target MODEL", "default: the bundled one", default=DEFAULT_TARGET)
    add("--data FILE", 'prompts, JSON lines with "messages" or "prompt", or plain text', type=Path)
    add("--eval FILE", "held-out prompts (default: a part of --data)", type=Path)
    add("--replies FOLDER", "stored replies with hidden states, used instead of --data", type=Path)
    add("--init FOLDER", "start from an earlier training's result", type=Path)
    limit = "time limit for writing replies and training together (default: 15)"
    add("--minutes N", limit, type=float, default=15.0)
    add("--steps N", "training steps, instead of a time limit", type=int)
    add("--tokens N", "tokens of replies to write, instead of a part of the time", type=int)
    add("--max-reply N", "longest reply (default: 256)", type=int, default=256)
    add("--size LAYERSxWIDTH", "size of a draft model, such as 2x192", default="")
    add("--set NAME=VALUE", "a setting of the method; repeatable", action="append", default=[])
    add("--optimizer", choices=["auto", "muon", "adamw"], default="auto")
    add("--lr", "peak learning rate", type=float)
    add("--batch-tokens N", "tokens in a training step, about", type=int)
    add("--seed", type=int, default=0)
    add("--threads N", "CPU threads (default: all cores but one)", type=int)
    add("--device", "auto, cpu, cuda, cuda:1 …", default="auto")
    add("--dtype", choices=["auto", "float32", "bfloat16"], default="auto")
    add("--keep", "keep replies and checkpoint in FOLDER.training", action="store_true")
    add("--force", "replace FOLDER and what is in FOLDER.training", action="store_true")
    add("--json", "one JSON object as the last line of stdout", action="store_true")


async def run(args: argparse.Namespace) -> None:
    """Train, with a progress line, and print the table.

    When cancelled, as by an interrupt, the state of the training is saved first.

    Raises:
        SpecstreamError: see `specstream.training.run.train`.
    """
    options = _options(args)
    with ends_at_once():
        check_inputs(options)
        from specstream.training.output import as_json, table_of
        from specstream.training.run import train
    stopped, shown = threading.Event(), TrainingLine(sys.stderr, every=_EVERY_S)
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


async def _told(work: asyncio.Future[Trained], shown: TrainingLine) -> None:
    """Wait until the training has saved its state, and print how to continue."""
    try:
        await work
    except TrainingStopped as error:
        shown.clear()
        note(f"specstream: {error}")


def _options(args: argparse.Namespace) -> TrainOptions:
    values: dict[str, Any] = {
        name: getattr(args, name) for name in TrainOptions.__dataclass_fields__ if hasattr(args, name)
    }
    settings = {}
    for text in args.set:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set {text}: give NAME=VALUE")
        settings[name] = value
    return TrainOptions(**values, settings=settings)


class TrainingLine(Progress):
    """Shows a line for each stage of the training, and its progress."""

    _began, _first = 0.0, 0.0  # of the stage: when it was first told of, and the part done then

    def tell(self, what: str, done: float, says: str) -> None:
        """Show which part of a stage is done, and what it says of itself."""
        now = self._clock()
        if self.stage(what):
            self._began, self._first = now, done
        left = forecast(now - self._began, done - self._first, 1 - self._first)
        bar = "#" * round(done * 20)
        figures = ", ".join(filter(None, (left.removeprefix(", "), says)))
        self.show(f"{what} {done:4.0%} [{bar:.<20}] {figures}")
