"""``specstream doctor``: what is installed, what is missing, and how to fix it."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specstream import __version__
from specstream.checks import cache_folder, first_line
from specstream.commands.shared.terminal import ends_at_once
from specstream.errors import SpecstreamError

if TYPE_CHECKING:
    from specstream.stages.adapters import AdapterKind, EarsKind

__all__ = ["extras", "host_facts", "run"]

_ENGINE = ("torch", "transformers")
_NEEDED = (*_ENGINE, "websockets", "anyio", "pydantic")
_WITHOUT = {
    "soundfile": "audio files can't be written",
    "normt2s": "numbers and dates are not written out for the voice",
}
_FLAGS = (
    *("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8"),
    *("asimddp", "bf16", "i8mm"),
)
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
    from specstream.commands.models import pulled_models
    from specstream.commands.shared.common import remedy
    from specstream.commands.shared.output import print_json
    from specstream.commands.shared.serving import PORT
    from specstream.config import DEFAULT_DRAFT, DEFAULT_TARGET
    from specstream.stages.adapters import BEST_VOICES

    found |= host_facts(PORT) | {"extras": extras()}
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
    ready = (name for name in (*BEST_VOICES, "reference") if states["voice"].get(name) == "ready")
    found["default_voice"] = next(ready, "none")
    if found["default_voice"] == "none":  # as where a checkout is used in place
        advice.append("no voice is installed, not even the test voice: pip install specstream-client")
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


def host_facts(port: int) -> dict[str, Any]:
    """What decides how fast an engine is here, by name; ``port``: where ``serve`` would listen."""
    import psutil

    from specstream.engine.cores import core_quota, cores_here, cpu_name
    from specstream.model.native.builds import cpu_features

    facts: dict[str, Any] = {"cpu": cpu_name()}
    features, _ = cpu_features()
    facts["cpu_flags"] = ", ".join(flag for flag in _FLAGS if flag in features) or "none that matter"
    cores = cores_here()
    facts["cores"] = f"{cores} of {os.cpu_count() or cores} may be used"
    if (quota := core_quota()) is not None:
        facts["cores"] += f"; a quota allows the time of {quota:g}"
    memory = psutil.virtual_memory()
    facts["memory"] = f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB free"
    try:
        folder = cache_folder("compiled")
        can = "can be written" if _writable(folder) else "can not be written"
        facts["cache"] = f"{folder} ({can})"
    except OSError as error:
        facts["cache"] = f"none: {error}"
    facts["sound"] = _sound_cards()
    facts["port"] = f"{port} ({'free' if _free(port) else 'in use'})"
    return facts


def _sound_cards() -> str:
    """The machine's own sound devices; a page, a client or a telephone line brings another one."""
    try:
        lines = Path("/proc/asound/cards").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "not known" if sys.platform != "linux" else "no device here"
    cards = [line.partition("]: ")[2] for line in lines if "]: " in line]
    return ", ".join(cards) or "no device here"


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def extras() -> dict[str, str]:
    """The extras of what is installed, each found or with the command that brings it."""
    for name in ("specstream-sdk", "specstream-client"):
        try:
            required = importlib.metadata.distribution(name).requires or ()
            break
        except importlib.metadata.PackageNotFoundError:  # as where a checkout is used in place
            continue
    else:
        return {}
    packages: dict[str, list[str]] = {}
    for requirement in required:
        package, _, marker = requirement.partition(";")
        if extra := re.search(r"extra == ['\"]([\w-]+)", marker):
            packages.setdefault(extra[1], []).append(re.split(r"[^\w.-]", package.strip())[0])
    packages.pop("dev", None)
    return {
        extra: "found" if all(map(_found, names)) else f"not here; pip install '{name}[{extra}]'"
        for extra, names in packages.items()
    }


def _found(package: str) -> bool:
    try:
        return bool(importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return False


def _adapters(advice: list[str]) -> dict[str, dict[str, str]]:
    """The states of all adapters, by kind; the reasons of those that fail are added to ``advice``."""
    from specstream.engine.engine import Engine
    from specstream.stages.adapters import adapter_names, require_adapter

    kinds: tuple[AdapterKind | EarsKind, ...]
    kinds = ("voice", "avatar", "prompt", "recognizer", "turns", "echo")
    states: dict[str, dict[str, str]] = {kind: {} for kind in kinds}
    for kind in kinds:
        for name in adapter_names(kind):
            given = {"generator": Engine.load()} if (kind, name) == ("prompt", "model") else {}
            try:
                require_adapter(kind, name, **given)
                states[kind][name] = "ready"
            except SpecstreamError as error:
                states[kind][name] = "not ready"
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
