"""Atomic files: written under a temporary name, then renamed, so that no partial file is ever seen."""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from specstream.errors import OutputError

__all__ = [
    "read_json",
    "read_tensors",
    "tell_acceptance",
    "write_bytes",
    "write_json",
    "write_tensors",
]


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Replace ``path`` atomically: after a crash it has either its old or its new content.

    Raises:
        OutputError: the file can't be written; the old content stays.
    """
    beside = path.with_name(path.name + ".part")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise OutputError(
            f"{path} can't be written: {error.strerror or error}; what was written before is kept: make "
            "room and give the same command again to go on"
        ) from error


def write_tensors(path: Path, value: Any) -> None:
    """Write a value with ``torch.save``, atomically; see `write_bytes`."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    write_bytes(path, buffer.getbuffer())


def read_tensors(path: Path, *, lazily: bool = False) -> Any:
    """Read a file of `write_tensors`: tensors and plain values only; no code in it is executed.

    With ``lazily`` the tensors are mapped from the file and read when they are used.

    Raises:
        OutputError: the file is damaged or can't be read.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=lazily)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OutputError(f"{path} can't be read: {first:.200}") from error


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object as JSON, atomically; see `write_bytes`."""
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """Read the JSON object in a file; None if there is no file.

    Raises:
        OutputError: the file is damaged, no JSON object, or can't be read.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise OutputError(f"{path} can't be read: {error}") from error
    if not isinstance(found, dict):
        raise OutputError(f"{path} is no JSON object")
    return found


def tell_acceptance(folder: Path, positions: Sequence[float]) -> None:
    """Write a draft's acceptance by position into its ``config.json``; see `told_acceptance`."""
    path = folder / "config.json"
    found = [min(max(round(one, 3), 0.001), 0.999) for one in positions]
    write_json(path, (read_json(path) or {}) | {"acceptance": found})
