"""The folder for what is kept between runs: compiled code and pulled models."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder(name: str) -> Path:
    """A folder ``name`` in ``$SPECSTREAM_CACHE``, else in ``specstream`` in the user's cache."""
    chosen = os.environ.get("SPECSTREAM_CACHE")
    if chosen:
        return Path(chosen) / name
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "specstream" / name
