"""A folder of compiled code: the next start loads in milliseconds what took seconds to compile."""

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

_KEPT = 8  # of other versions and CPUs, each some 100 kB
_STALE_S = 24 * 3600.0


class CodeStore:
    """A folder of files, each named by the hash of its recipe.

    ``folder`` defaults to ``compiled`` in ``$SPECSTREAM_CACHE``, else in ``specstream`` in the user's
    cache folder. Only the ``kept`` most recently used files stay. Several processes may share it: a
    file appears complete or not at all.
    """

    def __init__(self, folder: Path | None = None, kept: int = _KEPT) -> None:
        self.folder = folder or cache_folder("compiled")
        self._kept = kept

    def path(self, recipe: Mapping[str, object], make: Callable[[Path], None]) -> Path:
        """The file made from ``recipe`` (JSON data); ``make`` writes it to a path if there is none.

        Raises:
            OSError: the folder can't be written, or others can write to it.
        """
        digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
        path = self.folder / f"{digest[:32]}.so"
        # Code is loaded from here: nobody else may write to it.
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_ours(self.folder)
        if path.is_file():
            with suppress(OSError):  # a folder that was filled beforehand may be read-only
                os.utime(path)
            return path
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            fresh = Path(folder) / path.name
            make(fresh)
            os.replace(fresh, path)
        self._forget()
        return path

    def discard(self, path: Path) -> None:
        """Remove a useless file; the next start makes it again."""
        path.unlink(missing_ok=True)

    def _forget(self) -> None:
        used: list[tuple[float, Path]] = []
        for path in self.folder.glob("*.so"):
            try:
                used.append((path.stat().st_mtime, path))
            except FileNotFoundError:
                continue  # another process was quicker
        for _, path in sorted(used)[: -self._kept]:
            path.unlink(missing_ok=True)
        for left in self.folder.glob("tmp*"):  # by a process that was killed
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > _STALE_S:
                    shutil.rmtree(left)


def _check_ours(folder: Path) -> None:
    found = folder.stat()
    if hasattr(os, "getuid") and (
        found.st_uid not in (os.getuid(), 0) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    ):
        raise PermissionError(errno.EPERM, "others can write to it, and code is loaded from there")
