"""``specstream export``: convert the avatar cues of a recorded turn to another animation format."""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from specstream.checks import writing
from specstream.commands.shared.terminal import adding_to
from specstream.errors import ConfigError
from specstream.stages.adapters import load_adapter
from specstream.types import AvatarCue

__all__ = ["add_export_options", "read_cues", "run"]

_CUE = TypeAdapter(AvatarCue)


def add_export_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = adding_to(parser)
    add("cues FILE", "avatar.jsonl, as `specstream say` writes it")
    formats = "arkit, oculus, vrm, microsoft, rhubarb, rhubarb-tsv or talkinghead"
    add("--to FORMAT", formats, required=True)
    add("--fps", "frames a second (default: 60)", type=float, default=60.0)
    add("--out FILE", "file to write (default: stdout)")


async def run(args: argparse.Namespace) -> None:
    """Write the converted cues to ``--out`` or stdout."""
    source = Path(args.cues)
    _check_other(source, args.out)
    text = load_adapter("avatar", "viseme").export(read_cues(source), args.to, args.fps)
    if args.out is None:
        sys.stdout.write(text)
        return
    with writing(args.out):
        Path(args.out).write_text(text, encoding="utf-8")  # noqa: ASYNC240


def _check_other(source: Path, out: str | None) -> None:
    if out is not None and os.path.exists(out) and source.exists() and source.samefile(out):
        raise ConfigError(f"--out {out} is the file of cues itself: name another")


def read_cues(path: Path) -> list[AvatarCue]:
    """Read the cues of a file with one JSON object a line.

    Raises:
        ConfigError: the file can't be read, or a line isn't a cue.
    """
    cues: list[AvatarCue] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            cues.append(_cue(line))
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: not an avatar cue: {_why(error)}") from error
    return cues


def _cue(line: str) -> AvatarCue:
    cue = _CUE.validate_json(line, strict=True)
    if not all(map(math.isfinite, (cue.t_ms, cue.duration_ms, cue.weight, *cue.weights.values()))):
        raise ValueError("times and weights are finite numbers")
    return cue


def _why(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"it has no {key!r}"
    return ": ".join(filter(None, (key, first["msg"])))
