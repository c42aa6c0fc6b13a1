"""What is settled before anything is measured: CPU threads, a padded target, the log to be watched."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from specstream.bench.arms.thread import BenchThread
from specstream.bench.options import parse_padding
from specstream.bench.padded import save_padded
from specstream.bench.threads import choose_threads, cores_here, measure_rate
from specstream.config import EngineConfig
from specstream.model.load import choose_device

__all__ = ["Faults", "padded_target", "settle_threads"]


class Faults(logging.Handler):
    """Counts what the engine logs as errors: it goes on after them, but the figures suffer."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._seen: list[str] = []
        self._log = logging.getLogger("specstream.engine")
        self._log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Called by the logger."""
        self._seen.append(record.getMessage())

    def end(self) -> list[str]:
        """Stop listening; one line about them all, or none."""
        self._log.removeHandler(self)
        if not self._seen:
            return []
        times = f"{len(self._seen)} {'time' if len(self._seen) == 1 else 'times'}"
        return [f"the engine reported an error {times}; the first: {self._seen[0]}"]


async def settle_threads(config: EngineConfig) -> tuple[EngineConfig, list[str]]:
    """The config with its number of CPU threads settled, and what is to be said of it."""
    threads = cores = cores_here()
    if config.threads is not None:
        return config, []
    if choose_device(config.device).type == "cpu":
        thread = BenchThread(cores)
        try:
            threads = await thread.call(lambda: choose_threads(cores, measure_rate))
        finally:
            thread.close()
    said = f"the cores are busy: {threads} of {cores} threads compute faster now, so every arm has"
    notes = [f"{said} {threads} (--threads decides otherwise)"] if threads < cores else []
    return config.model_copy(update={"threads": threads}), notes


@asynccontextmanager
async def padded_target(
    config: EngineConfig, size: str | None
) -> AsyncGenerator[tuple[EngineConfig, str], None]:
    """The config with the target padded to ``size``, in a temporary folder, and what it is in words.

    Without a size, the config as it is and no words.

    Raises:
        ConfigError: not a size, or the target is larger already.
        ModelError: the target can't be read or padded.
    """
    if not size:
        yield config, ""
        return
    padding = parse_padding(size)
    with tempfile.TemporaryDirectory(prefix="specstream-padded-") as folder:
        thread = BenchThread(config.threads or 1)
        try:
            save = partial(save_padded, config.target, padding, Path(folder))
            shape, parameters = await thread.call(save)
        finally:
            thread.close()
        words = (
            f"{parameters / 1e6:.0f}M parameters, {shape.layers} layers of width {shape.hidden}, MLPs "
            f"of {shape.intermediate}: same distribution as the unpadded target, larger cost"
        )
        yield config.model_copy(update={"target": folder}), words
