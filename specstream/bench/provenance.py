"""Where a result came from: versions, machine, models, options."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from specstream import __version__
from specstream.config import DEFAULT_DRAFT, DEFAULT_TARGET, EngineConfig

__all__ = ["load_average", "provenance_of"]

_PACKAGES = ("torch", "transformers", "numpy", "tokenizers", "safetensors")


def provenance_of(
    config: EngineConfig, options: Mapping[str, Any], target: str, padded: str = ""
) -> dict[str, Any]:
    """Everything that one would need to run it again, as JSON data.

    ``target`` is the name of the target; the one in ``config`` may be a padded copy of it. ``draft`` is
    None where no draft fits the target.
    """
    from specstream.model.load import choose_device, choose_dtype, load_tokenizer
    from specstream.model.vocabulary import find_draft

    draft = find_draft(config, load_tokenizer(config.target))
    device = choose_device(config.device)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "specstream": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in _PACKAGES},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cpu_cores": os.cpu_count(),
        "cpu_cores_allowed": _allowed(),
        "threads": config.threads,
        "gpu": _gpu(device),
        "device": str(device),
        "dtype": str(choose_dtype(config.dtype, device)).removeprefix("torch."),
        "target": _model(config.target, target, DEFAULT_TARGET),
        "target_padded": padded,
        "draft": None if draft is None else _model(draft, draft, DEFAULT_DRAFT),
        "proposer": config.proposer.model_dump(),
        "rule": config.rule,
        "mode": config.mode,
        "options": dict(options),
    }


def _model(folder: str, name: str, bundled: str) -> dict[str, Any]:
    """A model's name and size; counted on its description, no weight is read."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    factory: Any = AutoModelForCausalLM

    with torch.device("meta"):
        config: Any = AutoConfig.from_pretrained(folder)
        model: Any = factory.from_config(config)
    return {
        "name": "bundled" if name == bundled else name,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "layers": getattr(config, "num_hidden_layers", None),
        "width": getattr(config, "hidden_size", None),
    }


def load_average() -> list[float] | None:
    """Of the last 1, 5 and 15 minutes; None where the system doesn't tell."""
    try:
        return [round(value, 2) for value in os.getloadavg()]
    except (OSError, AttributeError):
        return None


def _commit() -> str | None:
    """The commit of a source checkout, with a plus if files were changed; None elsewhere."""
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "--short=12", "HEAD")
        changed = _git(here, "status", "--porcelain", "--untracked-files=no", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+" if changed else "")


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _allowed() -> int | None:
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity else None


def _gpu(device: Any) -> dict[str, Any] | None:
    import torch

    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
    }
