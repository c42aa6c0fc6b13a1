"""``specstream doctor``: what is installed, what is missing, and how to fix it."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from specstream import __version__
from specstream.bench.machine import host_facts
from specstream.commands.chain import stage_or_adapter
from specstream.commands.common import remedy
from specstream.commands.interrupts import ends_at_once
from specstream.commands.models import pulled_models
from specstream.commands.output import print_json
from specstream.commands.serve import PORT
from specstream.config import DEFAULT_DRAFT, DEFAULT_TARGET
from specstream.errors import SpecstreamError
from specstream.pipeline.adapters import (
    AdapterKind,
    EarsKind,
    adapter_names,
    default_voice,
    load_adapter,
)
from specstream.session import Engine

__all__ = ["run"]

_NEEDED = ("torch", "transformers", "websockets", "anyio", "pydantic")
_WITHOUT = {
    "soundfile": "audio files can't be written",
    "normt2s": "numbers and dates are not written out for the voice",
}


async def run(args: argparse.Namespace) -> int:
    """Print the findings; missing optional parts don't change the exit code.

    Returns 1 if no reply could be written here: a package that is needed, or every model, is missing.
    """
    with ends_at_once():  # importing torch takes seconds
        return _tell(args)


def _tell(args: argparse.Namespace) -> int:
    found: dict[str, Any] = {"specstream": __version__, "python": platform.python_version()}
    advice: list[str] = []
    for package in (*_NEEDED, *_WITHOUT):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # as where a checkout is used in place
            found[package] = "missing"
            advice.append(f"{_WITHOUT.get(package, 'it is needed')}: pip install {package}")
    found |= host_facts(PORT)
    needed = all(found[package] != "missing" for package in _NEEDED)
    found |= _torch_facts() if found["torch"] != "missing" else {"cpu_passes": "native"}
    found["models"] = {
        name: "found" if (Path(path) / "model.safetensors").is_file() else "missing"
        for name, path in (("target", DEFAULT_TARGET), ("draft", DEFAULT_DRAFT))
    }
    bundled = set(found["models"].values())
    found["models"] |= {
        entry.name: "found" if entry.here else f"not here; specstream pull {entry.name}"
        for entry in pulled_models()
    }
    if "missing" in bundled:
        advice.append("the bundled models are missing: install specstream again from a full wheel")
    kinds: tuple[AdapterKind, ...] = ("voice", "avatar", "prompt")
    for kind in kinds:
        make = partial(stage_or_adapter, kind, engine=Engine.load())
        found[kind] = _states(kind, make, advice)
    ears: tuple[EarsKind, ...] = ("recognizer", "turns", "echo")
    for part in ears:
        found[part] = _states(part, partial(load_adapter, part), advice)
    if not found["cpu_passes"].startswith("native"):
        cure = remedy(found["cpu_passes"])
        advice.append(f"target passes on a CPU are not native and take about twice as long: {cure}")
    found["default_voice"] = default_voice().name
    works = needed and "found" in found["models"].values()
    if args.json:
        print_json(found | {"advice": advice})
        return 0 if works else 1
    for key, value in found.items():
        print(f"{key:14}{_words(value)}")
    print()
    for line in advice or ["nothing is missing"]:
        print(f"- {line}" if advice else line)
    return 0 if works else 1


def _states(
    kind: AdapterKind | EarsKind, make: Callable[[str], object], advice: list[str]
) -> dict[str, str]:
    """The state of each adapter of a kind; the reasons of those that fail are added to ``advice``."""
    states = {}
    for name in adapter_names(kind):
        try:
            make(name)
            states[name] = "ready"
        except SpecstreamError as error:
            states[name] = "not ready"
            advice.append(f"{kind} {name}: {error}")
    return states


def _torch_facts() -> dict[str, Any]:
    import torch

    from specstream.model.card import card_facts
    from specstream.model.native.builds import unfitting
    from specstream.model.native.library import Library, native_library

    facts: dict[str, Any] = {"cpu_threads": torch.get_num_threads(), "cpus": os.cpu_count()}
    facts["cpu_bfloat16"] = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    native = native_library()
    facts["cpu_passes"] = f"native: {native.name}" if isinstance(native, Library) else native
    if better := unfitting():
        facts["cpu_better"] = {name: f"needs {needs}" for name, needs in better.items()}
    return facts | card_facts()


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} ({state})" for name, state in value.items())
    return str(value)
