"""A folder of compiled code, so that later starts load it in milliseconds instead of compiling it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from specstream.cache import cache_folder

__all__ = ["CodeStore"]

_KEPT = 8  # compiled files, of several versions and CPUs; each has some 100 kB
_STALE_S = 24 * 3600.0  # age from which temporary folders are removed


class CodeStore:
    """A folder of compiled files, each named by a hash of everything that it depends on (its recipe).

    ``folder`` defaults to ``compiled`` in ``$SPECSTREAM_CACHE``, else in ``specstream`` in the user's
    cache folder. Only the ``kept`` most recently used files stay. Several processes may share it: a
    file appears complete or not at all.
    """

    def __init__(self, folder: Path | None = None, kept: int = _KEPT) -> None:
        self.folder = folder or cache_folder("compiled")
        self._kept = kept

    def path(self, recipe: Mapping[str, object], make: Callable[[Path], None]) -> Path:
        """The file for ``recipe`` (JSON data); if there is none, ``make`` writes it to the path it gets.

        Raises:
            OSError: the folder can't be written, or other users can write to it.
        """
        digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
        path = self.folder / f"{digest[:32]}.so"
        # Code is loaded from here, so no other user may be able to write to it.
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_ours(self.folder)
        if path.is_file():
            with suppress(OSError):  # the folder may be read-only, if it was filled beforehand
                os.utime(path)
            return path
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            fresh = Path(folder) / path.name
            make(fresh)
            os.replace(fresh, path)
        self._forget()
        return path

    def discard(self, path: Path) -> None:
        """Remove a file that can't be used, so that it is made again."""
        path.unlink(missing_ok=True)

    def _forget(self) -> None:
        used: list[tuple[float, Path]] = []
        for path in self.folder.glob("*.so"):
            try:
                used.append((path.stat().st_mtime, path))
            except FileNotFoundError:
                continue  # another process has removed it
        for _, path in sorted(used)[: -self._kept]:
            path.unlink(missing_ok=True)
        for left in self.folder.glob("tmp*"):  # left behind by a process that was killed
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > _STALE_S:
                    shutil.rmtree(left)


def _check_ours(folder: Path) -> None:
    found = folder.stat()
    if hasattr(os, "getuid") and (
        found.st_uid not in (os.getuid(), 0) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    ):
        raise PermissionError(errno.EPERM, "others can write to it, and code is loaded from there")
