"""The machine: what decides how fast an engine is here, threads for the arms, provenance of results."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from specstream import __version__
from specstream.bench.arms.base import BenchThread
from specstream.config import DEFAULT_DRAFT, DEFAULT_TARGET, EngineConfig
from specstream.engine.cores import cores_here, cpu_name

__all__ = ["choose_threads", "load_average", "provenance_of", "resident_mb", "settle_threads"]

_PACKAGES = ("torch", "transformers", "numpy", "tokenizers", "safetensors")
_TRIALS, _TRIAL_S = 4, 0.25  # speed trials for each number of threads, and seconds of a trial
_FASTER = 1.1  # all cores are used unless fewer threads are faster by this factor


async def settle_threads(config: EngineConfig) -> tuple[EngineConfig, list[str]]:
    """The config with its number of CPU threads decided, and a note if not all cores are used."""
    from specstream.model.load import choose_device

    if config.threads is not None:
        return config, []
    threads = cores = cores_here()
    if choose_device(config.device).type == "cpu":
        thread = BenchThread(cores)
        try:
            threads = await thread.call(lambda: choose_threads(cores, measure_rate))
        finally:
            thread.close()
    notes = []
    if threads < cores:
        notes.append(
            f"the cores are busy, so fewer threads are faster now: every arm uses {threads} of {cores} "
            "threads (--threads overrides this)"
        )
    return config.model_copy(update={"threads": threads}), notes


def choose_threads(cores: int, rate: Callable[[int], float]) -> int:
    """Return the fastest of all cores, half of them, or one; in doubt the larger number.

    On a busy machine, each operation waits for the thread whose core is taken, so fewer threads can be
    faster and vary less. ``rate`` returns steps a second with a number of threads; it is called for each
    candidate in turn, several times.
    """
    candidates = sorted({cores, max(1, cores // 2), 1}, reverse=True)
    rates = dict.fromkeys(candidates, 0.0)
    if len(candidates) > 1:
        for threads in candidates * _TRIALS:
            rates[threads] += rate(threads)
    best = cores
    for threads in candidates[1:]:
        if rates[threads] > _FASTER * rates[best]:
            best = threads
    return best


def measure_rate(threads: int) -> float:
    """Steps a second of a chain of small matrix products, similar to decoding with a small model."""
    import torch

    torch.set_num_threads(threads)
    weights = torch.randn(8, 1024, 1024)
    with torch.inference_mode():
        row = torch.randn(1, 1024)
        steps, started = 0, time.perf_counter()
        while (spent := time.perf_counter() - started) < _TRIAL_S:
            for weight in weights:
                row = torch.tanh(row @ weight)
            steps += 1
    return steps / spent


def provenance_of(
    config: EngineConfig, options: Mapping[str, Any], target: str, padded: str = ""
) -> dict[str, Any]:
    """Everything that is needed to repeat the run, as JSON data.

    ``target`` is the target's name; ``config`` may name a padded copy instead. The entry ``draft`` is
    None where no draft fits the target.
    """
    from specstream.model.load import choose_device, choose_dtype, load_tokenizer
    from specstream.model.native.library import Library, native_library
    from specstream.model.tokens.vocabulary import find_draft

    native = native_library()
    draft = find_draft(config, load_tokenizer(config.target))
    device = choose_device(config.device)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "specstream": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in _PACKAGES},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_name(),
        "cpu_cores": os.cpu_count(),
        "cpu_cores_allowed": cores_here(),
        "threads": config.threads,
        "native": native.name if isinstance(native, Library) else None,
        "gpu": _gpu(device),
        "device": str(device),
        "dtype": str(choose_dtype(config.dtype, device)).removeprefix("torch."),
        "target": _model(config.target, target, DEFAULT_TARGET),
        "target_padded": padded,
        "draft": None if draft is None else _model(draft, draft, DEFAULT_DRAFT),
        "proposer": config.proposer.model_dump(mode="json"),
        "rule": config.rule,
        "mode": config.mode,
        "options": dict(options),
    }


def _model(folder: str, name: str, bundled: str) -> dict[str, Any]:
    """A model's name and size, from its config file alone; no weights are read."""
    from specstream.model.load import load_config, parameters_of

    config: Any = load_config(folder)
    return {
        "name": "bundled" if name == bundled else name,
        "parameters": parameters_of(config),
        "layers": getattr(config, "num_hidden_layers", None),
        "width": getattr(config, "hidden_size", None),
    }


def resident_mb() -> float:
    """This process's resident set in MiB."""
    return float(psutil.Process().memory_info().rss / 2**20)


def load_average() -> list[float] | None:
    """Load averages of the last 1, 5 and 15 minutes; None where the system doesn't report them."""
    try:
        return [round(value, 2) for value in psutil.getloadavg()]
    except OSError:
        return None


def _commit() -> str | None:
    """The commit of a source checkout, with a plus if files were changed; None elsewhere."""

    def git(*words: str) -> str:
        argv = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(
            argv, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _gpu(device: Any) -> dict[str, Any] | None:
    import torch

    if device.type != "cuda":
        return None
    found = torch.cuda.get_device_properties(device)
    return {"name": found.name, "memory_gib": round(found.total_memory / 2**30, 1),
            "capability": f"{found.major}.{found.minor}", "cuda": torch.version.cuda}  # fmt: skip
