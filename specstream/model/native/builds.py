"""Native code that a wheel carries, built once for each kind of CPU, and which of it fits this one."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from archspec.cpu.detect import detected_info

__all__ = ["BUILDS", "FLAGS", "WRONG", "Build", "cpu_features", "fitting", "folder", "unfitting"]

FLAGS = (
    *("-std=c++17", "-O3", "-pthread", "-fvisibility=hidden"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"),
)
"""The compiler's options for ``passes.cpp``, apart from the CPU's."""

WRONG = 77
"""The exit status of a trial (see ``trial.py``) whose results are wrong."""

_X86_64_V3 = "avx2 bmi1 bmi2 f16c fma abm movbe"
_X86_64_V4 = f"{_X86_64_V3} avx512f avx512bw avx512cd avx512dq avx512vl"
_VNNI = f"{_X86_64_V4} avx512_vnni"
# All that the compiler may use for Zen 4 and Sapphire Rapids: a virtual machine can hide some of it.
_LATE = (
    f"{_VNNI} avx512_bf16 avx512_bitalg avx512_vbmi2 avx512_vpopcntdq avx512ifma avx512vbmi gfni vaes "
    "vpclmulqdq"
)


@dataclass(frozen=True, slots=True)
class Build:
    """Code for one kind of CPU.

    Attributes:
        name: The name of its file, without suffix.
        cpu: The compiler's name of the CPU, with features.
        needs: What a CPU must have, by Linux' names.
        vendor: The only maker whose CPUs gain from it, by its own name; empty: all.
    """

    name: str
    cpu: str
    needs: frozenset[str] = frozenset()
    vendor: str = ""

    @property
    def path(self) -> Path:
        """Where a wheel has it; in a source tree there is none."""
        suffix = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
        return folder() / f"{self.name}{suffix}"


def folder() -> Path:
    """The folder of built code."""
    return Path(__file__).with_name("built")


def _build(name: str, cpu: str, needs: str = "", vendor: str = "") -> Build:
    return Build(name, cpu, frozenset(needs.split()), vendor)


BUILDS = {
    "x86_64": (
        _build("amx", "sapphirerapids", f"{_LATE} avx512_fp16 amx_tile amx_bf16 amx_int8"),
        # Other makers' CPUs without AMX multiply bfloat16 no faster than float32: see lanes.h.
        _build("zen4", "znver4", _LATE, "AuthenticAMD"),
        _build("vnni", "cascadelake", _VNNI),
        _build("v4", "x86_64_v4", _X86_64_V4),
        _build("v3", "x86_64_v3", _X86_64_V3),
    ),
    "aarch64": (
        _build("bf16", "generic+v8_2a+dotprod+bf16", "asimddp bf16"),
        _build("dot", "generic+v8_2a+dotprod", "asimddp"),
        _build("neon", "generic"),
    ),
}
"""By architecture, the best first."""


def fitting(features: Iterable[str] | None = None, vendor: str = "") -> list[Build]:
    """The builds that this CPU can run, the best first; or a CPU with ``features`` of a ``vendor``."""
    if features is None:
        features, vendor = cpu_features()
    found = frozenset(features)
    builds = BUILDS.get(_architecture(), ())
    return [b for b in builds if b.needs <= found and b.vendor in ("", vendor)]


def unfitting() -> dict[str, str]:
    """What this CPU lacks, by the name of each build that is better than the best that fits it."""
    found, vendor = cpu_features()
    lacking = dict[str, str]()
    for build in BUILDS.get(_architecture(), ()):
        if build.needs <= found and build.vendor in ("", vendor):
            break
        lacking[build.name] = ", ".join(sorted(build.needs - found)) or f"a CPU of {build.vendor}"
    return lacking


def _architecture() -> str:
    machine = platform.machine()
    return {"AMD64": "x86_64", "arm64": "aarch64", "ARM64": "aarch64"}.get(machine, machine)


@cache
def cpu_features() -> tuple[frozenset[str], str]:
    """This CPU's features, by Linux' names, and its maker."""
    info = detected_info()
    found = set(info.features)
    if sys.platform == "darwin" and platform.machine() == "arm64":  # which lists none of these
        found |= {"asimddp"} if info.name == "m1" else {"asimddp", "bf16"}
    return frozenset(found), info.vendor
