"""Checks files by their digest before anything reads them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from specstream.errors import ModelBroken
from specstream.models.catalogue import PinnedFile

__all__ = ["check_digest", "has_digest"]


def has_digest(path: Path, wanted: PinnedFile) -> bool:
    """Whether ``path`` is a file with the pinned size and SHA-256 digest.

    Raises:
        OSError: the file can't be read.
    """
    if not path.is_file() or path.stat().st_size != wanted.size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == wanted.sha256


def check_digest(path: Path, wanted: PinnedFile, source: str) -> None:
    """Remove and refuse a file whose size or digest differs from the pinned one.

    Raises:
        ModelBroken: the file differs, or is missing; it was removed.
        OSError: the file can't be read.
    """
    if has_digest(path, wanted):
        return
    path.unlink(missing_ok=True)
    raise ModelBroken(
        f"{wanted.name} from {source} is not the file that is known (its SHA-256 is not "
        f"{wanted.sha256}); it was removed, nothing of it is used"
    )
