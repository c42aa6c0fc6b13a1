"""``specstream export``: convert the avatar cues of a recorded turn to another animation format."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from specstream.errors import ConfigError
from specstream.pipeline.adapters import load_adapter
from specstream.types import AvatarCue, Span
from specstream.wording import writing

__all__ = ["add_export_options", "read_cues", "run"]

_KEYS = {field.name for field in fields(AvatarCue)}
_KINDS = ("viseme", "gesture", "emotion")
_SPANS = ("samples", "chars", "tokens")


def add_export_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("cues", metavar="FILE", help="avatar.jsonl, as `specstream say` writes it")
    formats = "arkit, oculus, vrm, microsoft, rhubarb, rhubarb-tsv or talkinghead"
    parser.add_argument("--to", required=True, metavar="FORMAT", help=formats)
    parser.add_argument("--fps", type=float, default=60.0, help="frames a second (default: 60)")
    parser.add_argument("--out", metavar="FILE", help="file to write (default: stdout)")


async def run(args: argparse.Namespace) -> None:
    """Write the converted cues to ``--out`` or stdout."""
    text = load_adapter("avatar", "viseme").export(read_cues(Path(args.cues)), args.to, args.fps)
    if args.out is None:
        sys.stdout.write(text)
        return
    _write(Path(args.out), text)


def _write(path: Path, text: str) -> None:
    with writing(path):
        path.write_text(text, encoding="utf-8")


def read_cues(path: Path) -> list[AvatarCue]:
    """Read the cues of a file with one JSON object a line.

    Raises:
        ConfigError: the file can't be read, or a line isn't a cue.
    """
    cues: list[AvatarCue] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            cues.append(_cue(json.loads(line)))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else error
            raise ConfigError(f"{path}, line {number}: not an avatar cue: {why}") from error
    return cues


def _cue(values: dict[str, Any]) -> AvatarCue:
    spans = {name: Span(*map(int, values[name])) for name in _SPANS}
    cue = AvatarCue(**{k: v for k, v in values.items() if k in _KEYS} | spans)
    if cue.kind not in _KINDS or not (isinstance(cue.name, str) and isinstance(cue.sound, str)):
        raise ValueError(f"kind is one of {', '.join(_KINDS)}, name and sound are texts")
    for number in (cue.t_ms, cue.duration_ms, cue.weight, *cue.weights.values()):
        if isinstance(number, bool) or not math.isfinite(number):
            raise ValueError(f"{number!r:.40} is no time and no weight; these are finite numbers")
    return cue
