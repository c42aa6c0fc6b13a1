"""The folder for files that are kept between runs: compiled code and pulled models."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder(name: str) -> Path:
    """Return the path of ``name`` in ``$SPECSTREAM_CACHE``, else in the user's cache (not created).

    The user's cache is ``specstream`` in ``$XDG_CACHE_HOME``, or in ``~/.cache`` without that variable.

    Raises:
        OSError: neither variable is set, and the user has no home folder.
    """
    chosen = os.environ.get("SPECSTREAM_CACHE")
    if chosen:
        return Path(chosen) / name
    root = os.environ.get("XDG_CACHE_HOME")
    if not root:
        try:
            root = str(Path.home() / ".cache")
        except RuntimeError as error:
            raise OSError(
                "the user has no home folder; set SPECSTREAM_CACHE to a folder"
            ) from error
    return Path(root) / "specstream" / name
