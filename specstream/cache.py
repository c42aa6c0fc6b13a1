"""The folder for files that are kept between runs: compiled code and pulled models."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder(name: str) -> Path:
    """Return the path of ``name`` in ``$SPECSTREAM_CACHE``, else in the user's cache (not created).

    The user's cache is ``specstream`` in ``$XDG_CACHE_HOME``, or in ``~/.cache`` without that variable.
    """
    chosen = os.environ.get("SPECSTREAM_CACHE")
    if chosen:
        return Path(chosen) / name
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "specstream" / name
