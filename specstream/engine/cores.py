"""The cores that this process may use, and how many of them passes take."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path

__all__ = ["QUOTA_FILE", "core_quota", "cores_here", "cpu_name", "default_threads"]

QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")
"""Where Linux says how much of the cores' time a container may use."""

_OLD_QUOTA_FILE = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")


def default_threads() -> int:
    """The cores that this process may use minus one, which is left to speech and the event loop.

    A container's quota counts as so many cores, rounded up. Threads that have to wait for one busy core
    are together many times slower than fewer threads.
    """
    cores, quota = cores_here(), core_quota()
    return max(1, (cores if quota is None else min(cores, math.ceil(quota))) - 1)


def cores_here() -> int:
    """The cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def core_quota() -> float | None:
    """The cores' worth of time that a container may use; None if it isn't limited."""
    try:
        if QUOTA_FILE.exists():
            most, period = QUOTA_FILE.read_text(encoding="ascii").split()[:2]
            return None if most == "max" else int(most) / int(period)
        most_us = int(_OLD_QUOTA_FILE.read_text(encoding="ascii"))
        period_us = int(_OLD_QUOTA_FILE.with_name("cpu.cfs_period_us").read_text(encoding="ascii"))
        return most_us / period_us if most_us > 0 else None
    except (OSError, ValueError):
        return None


def cpu_name() -> str:
    """The processor's name, or its architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
