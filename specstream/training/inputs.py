"""Checks the inputs of a training before torch is imported, and reads files of prompts."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, TypeAlias

from specstream.bench.prompts import json_lines, text_of
from specstream.config import parse_config
from specstream.engine.core.prompt import check_messages
from specstream.errors import ConfigError
from specstream.models.sources import check_models
from specstream.training.options import TrainOptions, check_settings, size_of
from specstream.types import Message

__all__ = [
    "LEAST_PROMPTS",
    "PLAN",
    "TEXT_TOKENS",
    "Line",
    "check_count",
    "check_inputs",
    "check_out",
    "digest",
    "read_file",
]

LEAST_PROMPTS = 8
"""Fewer prompts than this are refused: none would be left to measure with."""
TEXT_TOKENS = 48
"""Tokens of a piece of plain text, which is a prompt for the target to continue."""
PLAN = "plan.json"
"""The file by which a folder is known as a training's work folder."""

_EMPTY = "{} is empty: it must hold prompts (JSON lines) or text"
_MOST_BYTES = 1 << 30

Line: TypeAlias = tuple[int, list[Message]]
"""The number of a line, and its conversation."""


def check_inputs(options: TrainOptions) -> None:
    """Refuse what can be seen to be wrong without reading a model.

    The values of settings, and whether plain text is long enough, are known only with the target.

    Raises:
        ConfigError: options, data or folders that don't fit.
        ModelNotFound, ModelBroken: there is no such target; see `check_models`.
    """
    check_out(options)
    check_settings(options)
    if options.size:
        size_of(options.size)
    for name in ("init", "replies"):
        folder: Path | None = getattr(options, name)
        if folder is not None and not folder.is_dir():
            raise ConfigError(f"--{name} {folder}: there is no such folder")
    if options.data is not None:
        read_file(options.data, LEAST_PROMPTS)
    if options.eval is not None:
        read_file(options.eval, 1)
    engine = {"device": options.device, "dtype": options.dtype, "threads": options.threads}
    # No draft is loaded, and none is looked for.
    check_models(parse_config({"target": options.target, "proposer": "off", **engine}))


def read_file(path: Path, least: int) -> list[Line] | str:
    """Read a file of prompts: JSON lines (see `specstream.training.replies.read_data`), or plain text.

    Raises:
        ConfigError: the file can't be read, or is empty; a line is no conversation and no prompt; there
            are fewer than ``least`` lines, or one JSON array of objects.
    """
    text = _text_of(path)
    first = next((line for line in text.split("\n") if line.strip()), "").lstrip()
    if not first:
        raise ConfigError(_EMPTY.format(path))
    if not first.startswith("{"):
        if first.startswith("["):
            _refuse_array(path, text)
        return text
    found = list(json_lines(path, text, _messages))
    check_count(path, len(found), least)
    return found


def check_count(path: Path, count: int, least: int) -> None:
    """Refuse too few prompts.

    Raises:
        ConfigError: there are fewer than ``least``.
    """
    if count < least:
        raise ConfigError(
            f"{path} gives too few prompts ({count}; at least {least} are needed; plain text gives "
            f"one for each {TEXT_TOKENS} tokens): add some"
        )


def digest(path: Path) -> str:
    """Return the SHA-256 of a non-empty file, in hexadecimal.

    Raises:
        ConfigError: the file can't be read, or is empty.
    """
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            if file.tell() == 0:
                raise ConfigError(_EMPTY.format(path))
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror or error}") from None
    return found


def _text_of(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{path} is larger than {_MOST_BYTES >> 20} MiB: give a part of it")
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror or error}") from None
    return text_of(path, raw)


def _refuse_array(path: Path, text: str) -> None:
    """Refuse a JSON array of objects, which would be taken for plain text and its syntax be learnt."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(found, list) and any(isinstance(one, dict) for one in found):
        raise ConfigError(f"{path} is one JSON array: write its objects one a line, without [ and ]")


def _messages(value: Any, _: int) -> list[Message]:
    if not isinstance(value, dict):
        raise ConfigError('a line is an object with "messages" or "prompt"')
    if isinstance(messages := value.get("messages"), list):
        return check_messages(messages)
    if isinstance(prompt := value.get("prompt"), str):
        return check_messages(prompt)
    raise ConfigError('a line needs "messages" (a list) or "prompt" (a text)')


def check_out(options: TrainOptions) -> None:
    """Refuse folders that can't be made or replaced, before anything is computed.

    Raises:
        ConfigError: ``out`` exists without ``force``, isn't a model's folder, is a link or has no valid
            name; ``work`` holds other files than a training's; data lie in one of the two, which the
            training would remove with them.
    """
    if options.out.is_symlink():
        raise ConfigError(f"{options.out} is a link, which can't be replaced: name a folder")
    if options.out.exists() and not options.force:
        raise ConfigError(f"{options.out} exists: choose another --out, or --force to replace it")
    if not options.out.name or options.out.name == "..":
        raise ConfigError(f"--out {options.out} is no name of a folder to make")
    if options.out.exists() and not _replaceable(options.out):
        raise ConfigError(
            f"{options.out} is no model's folder (it has no config.json), so --force doesn't replace it"
        )
    if options.work.exists() and not _resumable(options.work):
        raise ConfigError(
            f"{options.work} is where this training would keep its state, and it holds other files: "
            "choose another --out, or move it away"
        )
    for name in ("data", "eval", "replies"):
        path = getattr(options, name)
        for folder in (options.out, options.work):
            if path is not None and path.resolve().is_relative_to(folder.resolve()):
                raise ConfigError(
                    f"--{name} {path} lies in {folder}, which is removed in the end: move it away"
                )


def _replaceable(folder: Path) -> bool:
    return folder.is_dir() and ((folder / "config.json").is_file() or not any(folder.iterdir()))


def _resumable(folder: Path) -> bool:
    """Whether a folder is a training's, or empty; a kill may have left an unfinished plan."""
    if not folder.is_dir():
        return False
    return (folder / PLAN).is_file() or {one.name for one in folder.iterdir()} <= {PLAN + ".part"}
