"""What of this machine decides how fast the engine is: CPU, threads, memory, and native passes."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import Any

from specstream.bench.machine import cores_here, cpu_name
from specstream.cache import cache_folder
from specstream.session import Engine
from specstream.wording import counted

__all__ = ["host_facts", "remedy", "speed_line"]

_FLAGS = (
    *("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8"),
    *("asimddp", "bf16", "i8mm"),
)
_V2, _V1 = Path("/sys/fs/cgroup/cpu.max"), Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")


def host_facts(port: int) -> dict[str, Any]:
    """The facts, by name; ``port``: where ``serve`` would listen."""
    facts: dict[str, Any] = {"cpu": cpu_name()}
    if flags := _flags():
        facts["cpu_flags"] = ", ".join(flags)
    cores = cores_here()
    facts["cores"] = f"{cores} of {os.cpu_count() or cores} may be used"
    if (quota := _quota()) is not None:
        facts["cores"] += f"; a quota allows the time of {quota:g}"
    if (memory := _memory_gb()) is not None:
        facts["memory"] = f"{memory[0]:.1f} of {memory[1]:.1f} GB free"
    folder = cache_folder("compiled")
    facts["cache"] = f"{folder} ({'can be written' if _writable(folder) else 'can not be written'})"
    facts["port"] = f"{port} ({'free' if _free(port) else 'in use'})"
    return facts


def remedy(reason: str) -> str:
    """What to do where passes aren't native for ``reason`` (see `native_library`)."""
    if "no C++ compiler" in reason:
        return "install a C++ compiler (g++)"
    return reason.removeprefix("compile: no native passes: ")


def speed_line(engine: Engine) -> str:
    """One line about the speed of a running engine; with the cure where it is half of what could be."""
    import torch

    if (reason := engine.slowed) is not None:
        return (
            f"half speed: the target's passes are not native; {remedy(reason)} (specstream doctor)"
        )
    if torch.cuda.is_available() and engine.config.device != "cpu":
        return f"on {torch.cuda.get_device_name()}"
    threads = counted(torch.get_num_threads(), "thread")
    return f"on {threads} of {cpu_name()} (--threads sets it)"


def _flags() -> list[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return []
    line = next((one for one in text.splitlines() if one.startswith(("flags", "Features"))), "")
    here = set(line.partition(":")[2].split())
    return [flag for flag in _FLAGS if flag in here]


def _quota() -> float | None:
    """The cores' worth of time that a container may use; None if it isn't limited."""
    try:
        if _V2.exists():
            most, period = _V2.read_text(encoding="ascii").split()[:2]
            return None if most == "max" else int(most) / int(period)
        most_us = int(_V1.read_text(encoding="ascii"))
        period_us = int(_V1.with_name("cpu.cfs_period_us").read_text(encoding="ascii"))
        return most_us / period_us if most_us > 0 else None
    except (OSError, ValueError):
        return None


def _memory_gb() -> tuple[float, float] | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        kilobytes = [int(lines[name].split()[0]) for name in ("MemAvailable", "MemTotal")]
    except (OSError, KeyError, ValueError):
        return None
    return kilobytes[0] / 1e6, kilobytes[1] / 1e6


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
