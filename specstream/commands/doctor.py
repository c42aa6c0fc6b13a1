"""``specstream doctor``: what is installed, what is missing, and how to fix it."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specstream import __version__
from specstream.checks import first_line
from specstream.commands.shared.common import remedy
from specstream.commands.shared.output import print_json
from specstream.commands.shared.serving import PORT
from specstream.commands.shared.terminal import ends_at_once
from specstream.config import DEFAULT_DRAFT, DEFAULT_TARGET
from specstream.errors import SpecstreamError

if TYPE_CHECKING:
    from specstream.stages.adapters import AdapterKind, EarsKind

__all__ = ["run"]

_ENGINE = ("torch", "transformers")
_NEEDED = (*_ENGINE, "websockets", "anyio", "pydantic")
_WITHOUT = {
    "soundfile": "audio files can't be written",
    "normt2s": "numbers and dates are not written out for the voice",
}
_LIMIT_S = 60.0  # for torch to be imported and tried


async def run(args: argparse.Namespace) -> int:
    """Print the findings; missing optional parts don't change the exit code.

    Returns 1 if no reply could be written here: a package that is needed, or every model, is missing.
    """
    with ends_at_once():  # what is imported here takes seconds
        return _tell(args)


def _tell(args: argparse.Namespace) -> int:
    found: dict[str, Any] = {"specstream": __version__, "python": platform.python_version()}
    advice: list[str] = []
    for package in (*_NEEDED, *_WITHOUT):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # as where a checkout is used in place
            found[package] = "missing"
            install = "specstream-sdk" if package in _ENGINE else package
            advice.append(f"{_WITHOUT.get(package, 'it is needed')}: pip install {install}")
    needed = all(found[package] != "missing" for package in _NEEDED)
    asked = _ask_torch() if found["torch"] != "missing" else None
    # Imported and tried while the other process imports torch.
    from specstream.bench.machine import host_facts
    from specstream.commands.models import pulled_models
    from specstream.stages.adapters import default_voice

    found |= host_facts(PORT)
    states = _adapters(advice)
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
        advice.append("the bundled models are missing: pip install specstream-sdk, from a wheel")
    found |= states
    try:
        found["default_voice"] = default_voice().name
    except SpecstreamError as error:  # as where a checkout is used in place
        found["default_voice"] = "none"
        advice.append(str(error))
    if asked is not None:
        found |= (facts := _told(asked))
        if "cpu_passes" not in facts:
            needed = False
            advice.append(f"torch can't be used ({facts['torch_error']}): install it again")
        elif not (passes := facts["cpu_passes"]).startswith("native"):
            advice.append(
                f"target passes on a CPU are not native and take about twice as long: {remedy(passes)}"
            )
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


def _adapters(advice: list[str]) -> dict[str, dict[str, str]]:
    """The states of all adapters, by kind; the reasons of those that fail are added to ``advice``."""
    from specstream.commands.shared.chain import stage_or_adapter
    from specstream.engine.engine import Engine
    from specstream.stages.adapters import load_adapter

    kinds: tuple[AdapterKind, ...] = ("voice", "avatar", "prompt")
    ears: tuple[EarsKind, ...] = ("recognizer", "turns", "echo")
    makers: dict[AdapterKind | EarsKind, Callable[[str], object]] = {
        kind: partial(stage_or_adapter, kind, engine=Engine.load()) for kind in kinds
    }
    makers |= {part: partial(load_adapter, part) for part in ears}
    return {kind: _states(kind, make, advice) for kind, make in makers.items()}


def _states(
    kind: AdapterKind | EarsKind, make: Callable[[str], object], advice: list[str]
) -> dict[str, str]:
    from specstream.stages.adapters import adapter_names

    states = {}
    for name in adapter_names(kind):
        try:
            make(name)
            states[name] = "ready"
        except SpecstreamError as error:
            states[name] = "not ready"
            advice.append(f"{kind} {name}: {error}")
    return states


def _ask_torch() -> subprocess.Popen[str]:
    """Start a process that says what torch makes of this machine; one that crashes ends itself only."""
    command = [sys.executable, "-m", "specstream.model.card"]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _told(asked: subprocess.Popen[str]) -> dict[str, Any]:
    """The facts of `_ask_torch`, or ``torch_error``."""
    try:
        facts, error = asked.communicate(timeout=_LIMIT_S)
        told: dict[str, Any] = json.loads(facts.splitlines()[-1])
        return told
    except subprocess.TimeoutExpired:
        asked.kill()
        return {"torch_error": f"it took more than {_LIMIT_S:.0f} s"}
    except (ValueError, IndexError):
        lines = error.strip().splitlines() or [f"exit status {asked.returncode}"]
        return {"torch_error": first_line(lines[-1])}


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} ({state})" for name, state in value.items())
    return str(value)
