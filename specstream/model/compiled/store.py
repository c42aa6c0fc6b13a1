"""Compiled passes on disk: what takes a minute to compile is read in milliseconds the next time."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["PackageStore"]

_KEPT = 128  # packages of two or three megabytes


class PackageStore:
    """A folder of files, each named by what it was made from.

    ``folder`` defaults to ``compiled`` in ``$SPECSTREAM_CACHE``, else in ``specstream`` in the user's
    cache folder. Only the ``kept`` most recently used files stay. Several processes may share it: a
    file appears complete or not at all.
    """

    def __init__(self, folder: Path | None = None, kept: int = _KEPT) -> None:
        self.folder = folder or _default_folder()
        self._kept = kept

    def path(self, recipe: Mapping[str, object], make: Callable[[Path], None]) -> Path:
        """The file made from ``recipe`` (JSON data); ``make`` writes it to a path if there is none.

        Raises:
            OSError: the folder can't be written.
        """
        digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
        path = self.folder / f"{digest[:32]}.pt2"
        if path.is_file():
            path.touch()
            return path
        # Code is loaded from here: nobody else may write to it.
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            fresh = Path(folder) / path.name
            make(fresh)
            os.replace(fresh, path)
        self._forget()
        return path

    def discard(self, path: Path) -> None:
        """A file proved useless: the next start makes it again."""
        path.unlink(missing_ok=True)

    def _forget(self) -> None:
        used: list[tuple[float, Path]] = []
        for path in self.folder.glob("*.pt2"):
            try:
                used.append((path.stat().st_mtime, path))
            except FileNotFoundError:
                continue  # another process was quicker
        for _, path in sorted(used)[: -self._kept]:
            path.unlink(missing_ok=True)


def _default_folder() -> Path:
    chosen = os.environ.get("SPECSTREAM_CACHE")
    if chosen:
        return Path(chosen) / "compiled"
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "specstream" / "compiled"
