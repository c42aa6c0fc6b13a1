"""Files that are whole or not there: written beside their place, then renamed."""

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
    """Replace ``path`` at once: after a crash it has its old content or the new one.

    Raises:
        OutputError: it can't be written, with what to do; the old content stays.
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


def write_tensors(path: Path, value: Any) -> int:
    """Write what ``torch.save`` can, as `write_bytes` does; returns the bytes written."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    write_bytes(path, buffer.getbuffer())
    return buffer.getbuffer().nbytes


def read_tensors(path: Path, *, lazily: bool = False) -> Any:
    """Read what `write_tensors` wrote: tensors and plain values only; code in it is not run.

    With ``lazily`` the tensors are views of the file, read when they are used.

    Raises:
        OutputError: it is damaged or can't be read.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=lazily)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OutputError(f"{path} can't be read: {first:.200}") from error


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """As `write_bytes`."""
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """The object of a file; None where there is no file.

    Raises:
        OutputError: it is damaged or can't be read.
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
