"""The two folders of a training: the output folder and the work folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from torch import nn
from transformers import PreTrainedModel

from specstream.errors import ConfigError, OutputError
from specstream.train.files import new_folder, read_json, write_json
from specstream.train.inputs import PLAN
from specstream.train.options import TrainOptions
from specstream.train.trained import Trained

__all__ = ["facts_of", "locked", "open_work", "output_folder"]


@contextmanager
def locked(options: TrainOptions) -> Iterator[None]:
    """Keep other trainings out of the same work folder while the block runs.

    Raises:
        ConfigError: another training, here or in another process, is using the folder.
        OutputError: the lock's file, beside the folder, can't be made.
    """
    path = options.work.with_name(f"{options.work.name}.lock")
    lock = FileLock(path, timeout=0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise ConfigError(
            f"another training is using {options.work}: wait for its end, or choose another --out"
        ) from None
    except OSError as error:
        raise OutputError(f"{path} can't be made: {error.strerror or error}") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()


def open_work(options: TrainOptions, plan: Mapping[str, Any]) -> None:
    """Make the work folder, or accept the one that an earlier run of the same options left.

    Raises:
        ConfigError: the folder is of a run with other options, and ``force`` isn't given.
        OutputError: the folder can't be made or written.
    """
    try:
        before = read_json(options.work / PLAN)
    except OutputError:
        if not options.force:
            raise
        before = {}  # damaged, so nothing can go on from it
    if before is not None:
        differ = sorted(k for k in plan.keys() | before.keys() if plan.get(k) != before.get(k))
        if not differ:
            return
        if not options.force:
            raise ConfigError(
                f"{options.work} is of a training with other options ({', '.join(differ)}): give those "
                "again to go on with it, choose another --out, or --force to start anew"
            )
        shutil.rmtree(options.work)
    try:
        options.work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{options.work} can't be made: {error.strerror or error}") from error
    write_json(options.work / PLAN, plan)


@contextmanager
def output_folder(options: TrainOptions) -> Iterator[Path]:
    """Yield an empty folder, which becomes the output; then remove the work folder.

    Raises:
        OutputError: the folder can't be written; the checkpoint is kept.
    """
    try:
        with new_folder(options.out, replace=options.force) as folder:
            yield folder
    except (OSError, OutputError, SafetensorError) as error:
        raise OutputError(
            f"{options.out} can't be written: {error}; the training is kept in "
            f"{options.work}: the same command goes on from there"
        ) from error
    if not options.keep:
        shutil.rmtree(options.work, ignore_errors=True)


def facts_of(
    options: TrainOptions, target: PreTrainedModel, module: nn.Module, result: Trained
) -> dict[str, str]:
    """Return the facts for the model card, title to text."""
    now = result.progress
    weights = sum(p.numel() for p in module.parameters())
    positions = " ".join(f"{one:.3f}" for one in result.held.positions)
    return {
        "title": f"{options.kind} for {options.target}",
        "Target": f"{type(target).__name__}, {options.target}",
        "Weights": f"{weights / 1e6:.2f} million trained parameters",
        "Data": f"{result.reply_tokens} tokens of the target's replies to the prompts of "
        f"{options.data or options.replies}; {now.tokens} tokens were learnt in {now.step} steps",
        "Figures": f"Acceptance by draft position on {result.held.tokens:.0f} tokens of held-out "
        f"replies sampled at temperature 1: {positions}; mean "
        f"acceptance length {result.held.length:.2f}",
        "Licence": "The weights were learnt from the target's replies to these prompts: its "
        "licence and that of the prompts decide how they may be used.",
        "Made with": f"specstream train {options.kind}",
    }
