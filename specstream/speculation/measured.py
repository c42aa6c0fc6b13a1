"""Times of passes that an earlier start measured on this machine, with the same models and versions."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import torch
import transformers

from specstream import __version__
from specstream.cache import cache_folder
from specstream.config import EngineConfig
from specstream.model.native.library import machine_facts
from specstream.model.runner import ModelRunner
from specstream.models.kept import located

__all__ = ["FRESH", "MeasuredTimes", "identity_of"]

_log = logging.getLogger("specstream.engine")

_KEPT = 64  # files, one for each engine config, some hundred bytes each
_VALID_S = 30 * 24 * 3600.0


class MeasuredTimes:
    """Times by name, from the file of an earlier start or measured now; `keep` writes what is new.

    The engine refines the costs that it makes of them with every round, so they needn't be exact. A file
    that can't be read or written, or is older than a month, is as none.

    Args:
        identity: Everything that times depend on, as JSON data; None: nothing is read or kept.
        folder: Where files are kept; by default ``measured`` in the cache folder.
    """

    def __init__(self, identity: Mapping[str, object] | None, folder: Path | None = None) -> None:
        self._path: Path | None = None
        self._times = dict[str, list[float]]()
        self._fresh = False
        if identity is None:
            return
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        with suppress(OSError, ValueError):
            self._path = (folder or cache_folder("measured")) / f"{digest[:32]}.json"
            if time.time() - self._path.stat().st_mtime < _VALID_S:
                self._times = _checked(json.loads(self._path.read_text(encoding="utf-8")))

    def of(self, name: str, count: int, measure: Callable[[], list[float]]) -> list[float]:
        """The ``count`` times of ``name``, in ms, measured unless an earlier start has."""
        if self._path is None:
            return measure()
        found = self._times.get(name, [])
        if len(found) != count:
            found = self._times[name] = measure()
            self._fresh = True
        return found

    def forget(self, name: str) -> None:
        """Let the times of ``name`` be measured again by the next start."""
        if self._times.pop(name, None) is not None:
            self._fresh = True

    def keep(self) -> None:
        """Write the times for later starts, if some were measured now."""
        if self._path is None or not self._fresh:
            return
        folder = self._path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as own:
                fresh = Path(own) / self._path.name
                fresh.write_text(json.dumps(self._times), encoding="utf-8")
                os.replace(fresh, self._path)
        except OSError as error:
            _log.info("times of passes can't be kept in %s (%s)", folder, error.strerror)
            return
        with suppress(OSError):  # another start may remove the same files
            files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for old in files[:-_KEPT]:
                old.unlink(missing_ok=True)


FRESH = MeasuredTimes(None)
"""Measures at each call."""


def identity_of(
    config: EngineConfig, target: ModelRunner, cores: int, quota: float | None
) -> dict[str, object] | None:
    """All that the times of passes depend on; None if that can't be told.

    So it is where the config holds an object that has no name, or a file vanishes meanwhile. Of a model
    by its id on the Hub the config counts, which decides the sizes of its passes.
    """
    try:
        told = config.model_dump(mode="json")
        paths = [Path(located(name)) for name in (config.target, *config.drafts)]
        files = [
            (str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns)
            for each in paths
            for path in ([each] if each.is_file() else sorted(each.glob("*")))
        ]
    except (OSError, ValueError):
        return None
    on_gpu = target.device.type == "cuda"
    native = target.decoder.native if target.lean else None
    return machine_facts() | {
        "versions": [__version__, torch.__version__, transformers.__version__],
        "device": torch.cuda.get_device_name(target.device) if on_gpu else "cpu",
        "native": None if native is None else [native.name, native.path.name],
        "cores": [cores, quota, torch.get_num_threads()],
        "config": told,
        "model": str(target.model.config),
        "files": files,
    }


def _checked(found: object) -> dict[str, list[float]]:
    """``found`` if it is what `MeasuredTimes.keep` writes.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(found, dict):
        raise ValueError("no times")
    for times in found.values():
        if not isinstance(times, list) or not all(
            isinstance(ms, float) and 0 < ms < math.inf for ms in times
        ):
            raise ValueError("no times")
    return found
