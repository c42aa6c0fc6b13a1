"""The native library: the C++ of this folder, as a wheel brings it or as this machine compiles it."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import logging
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, cast

from specstream.checks import cache_folder, first_line
from specstream.errors import ConfigError
from specstream.model.native.builds import FLAGS, WRONG, Build, fitting
from specstream.model.native.structs import (
    ChainStruct,
    LayerStruct,
    LevelStruct,
    Matrix,
    PassStruct,
    Sizes,
)

__all__ = [
    "CodeStore",
    "Library",
    "compile_code",
    "compiled_here",
    "library",
    "loaded_library",
    "machine_facts",
    "native_library",
    "try_code",
]

_KEPT = 8  # compiled files, of several versions and CPUs; each has some 100 kB
_STALE_S = 24 * 3600.0  # age from which temporary folders are removed


class CodeStore:
    """A folder of compiled files, each named by a hash of everything that it depends on (its recipe).

    ``folder`` defaults to ``compiled`` in ``$SPECSTREAM_CACHE``, else in ``specstream`` in the user's
    cache folder. Only the ``kept`` most recently used files stay. Several processes may share it: a
    file appears complete or not at all.
    """

    def __init__(self, folder: Path | None = None, kept: int = _KEPT) -> None:
        self.folder = folder or cache_folder("compiled")
        self._kept = kept

    def path(self, recipe: Mapping[str, object], make: Callable[[Path], None]) -> Path:
        """The file for ``recipe`` (JSON data); if there is none, ``make`` writes it to the path it gets.

        Raises:
            OSError: the folder can't be written, or other users can write to it.
        """
        digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
        path = self.folder / f"{digest[:32]}.so"
        # Code is loaded from here, so no other user may be able to write to it.
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_ours(self.folder)
        if path.is_file():
            with suppress(OSError):  # the folder may be read-only, if it was filled beforehand
                os.utime(path)
            return path
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            fresh = Path(folder) / path.name
            make(fresh)
            os.replace(fresh, path)
        self._forget()
        return path

    def discard(self, path: Path) -> None:
        """Remove a file that can't be used, so that it is made again."""
        path.unlink(missing_ok=True)

    def _forget(self) -> None:
        used: list[tuple[float, Path]] = []
        for path in self.folder.glob("*.so"):
            try:
                used.append((path.stat().st_mtime, path))
            except FileNotFoundError:
                continue  # another process has removed it
        for _, path in sorted(used)[: -self._kept]:
            path.unlink(missing_ok=True)
        for left in self.folder.glob("tmp*"):  # left behind by a process that was killed
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > _STALE_S:
                    shutil.rmtree(left)


def _check_ours(folder: Path) -> None:
    found = folder.stat()
    if hasattr(os, "getuid") and (
        found.st_uid not in (os.getuid(), 0) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    ):
        raise PermissionError(errno.EPERM, "others can write to it, and code is loaded from there")


_log = logging.getLogger("specstream.model")

_SOURCE = Path(__file__).with_name("passes.cpp")  # includes all headers of this folder
_HERE_ONLY = ("-march=native", "-shared", "-fPIC")
TIMEOUT_S = 300.0
"""For a compiler, and for a trial of its code."""
_HERE = "compiled here"
_WISH, _TRIAL = "SPECSTREAM_NATIVE", "SPECSTREAM_TRIAL"
_WORKS = "works"


class Library:
    """The functions of ``passes.cpp``.

    Passes and products release Python's lock (the GIL). Sampling functions keep it: they are short, and
    getting the lock back from another thread could take longer than the work.

    Args:
        path: The file.
        name: Which code this is: a name of `builds.BUILDS`, or that it was compiled here.

    Raises:
        OSError: the file can't be loaded.
        AttributeError: the file lacks a function.
    """

    def __init__(self, path: Path, name: str = _HERE) -> None:
        self.name, self.path = name, path
        code, brief = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
        address, size = ctypes.c_void_p, ctypes.c_int64
        count, real = ctypes.c_int32, ctypes.c_float
        layers = ctypes.POINTER(Sizes), ctypes.POINTER(LayerStruct)
        given, matrix = ctypes.POINTER(PassStruct), ctypes.POINTER(Matrix)
        chain, level = ctypes.POINTER(ChainStruct), ctypes.POINTER(LevelStruct)
        self.run_layers = _typed(code.run_layers, None, *layers, size, given, count)
        self.run_chain = _typed(code.run_chain, None, *layers, size, given, chain, count)
        self.run_level = _typed(code.run_level, None, *layers, given, level, count)
        self.run_product = _typed(code.run_product, None, matrix, address, size, address, count)
        row = address, size
        softmax = address, count, size, size, real, address
        self.run_softmax = _typed(brief.run_softmax, None, *softmax)
        self.run_drawn = _typed(brief.run_drawn, size, *row, ctypes.c_double)
        self.run_without = _typed(brief.run_without, None, *row, size, address)
        self.run_residual = _typed(brief.run_residual, None, address, *row, real, address)
        self.run_distributions = _typed(brief.run_distributions, count, *row, size, real)
        self.run_spread = _typed(brief.run_spread, None, address, *row, size, size, real, address)
        self.run_keyed = _typed(brief.run_keyed, size, address, *row, size, size)


def _typed(function: Any, result: Any, *arguments: Any) -> Callable[..., Any]:
    """``function`` of a library, with the ctypes of its result and arguments declared."""
    function.restype, function.argtypes = result, arguments
    return cast("Callable[..., Any]", function)


def library(wanted: bool | None) -> Library | None:
    """The library; compiled now if neither a wheel nor an earlier start left code for this CPU.

    Args:
        wanted: False: return None. None: return None, with a line in the log, if it can't be had. True:
            raise an error then.

    Raises:
        ConfigError: ``wanted`` is True, and there is neither code for this CPU nor a working C++
            compiler, or the folder for compiled code can't be written.
    """
    made = None if wanted is False else native_library()
    if wanted and isinstance(made, str):
        raise ConfigError(made)
    return made if isinstance(made, Library) else None


@cache
def native_library() -> Library | str:
    """The library, or a text that says why there is none; tried once in a process.

    The best code for this CPU that a wheel brought, else what a compiler of this machine makes. With
    ``$SPECSTREAM_NATIVE`` it is the code of that name only, or with ``compile`` compiled in any case.
    """
    wish = os.environ.get(_WISH, "")
    for build in fitting():
        if wish in ("", build.name) and (made := _shipped(build)):
            return made
    if wish not in ("", "compile"):
        return _none(f"${_WISH} is {wish!r}, and there is no code of that name for this CPU")
    return compiled_here()


def _shipped(build: Build) -> Library | None:
    """What a wheel brought, if it computes rightly here; tried in a process of its own, once."""
    if not build.path.is_file():
        return None
    verdict = _WORKS
    try:
        recipe = {"tried": hashlib.sha256(build.path.read_bytes()).hexdigest(), **machine_facts()}
        with suppress(OSError):  # where nothing can be kept, each start would take seconds to try it
            note = CodeStore().path(recipe, lambda to: try_code(build, to))
            verdict = note.read_text(encoding="utf-8")
        if verdict == _WORKS:
            return Library(build.path, build.name)
    except (OSError, AttributeError) as error:
        verdict = f"can't be loaded ({error})"
    _log.warning("native code %r %s on this CPU: slower code is used", build.name, verdict)
    return None


def try_code(build: Build, note: Path) -> None:
    """Write to ``note`` how a process ends that computes with the code."""
    verdict = _WORKS
    # A frozen program's executable is the program; the variable ends what would start itself for ever.
    if sys.executable and not getattr(sys, "frozen", False) and _TRIAL not in os.environ:
        _log.info("trying native code for this CPU, some five seconds; once")
        command = [sys.executable, "-m", "specstream.model.native.trial", str(build.path)]
        try:
            status = subprocess.run(
                command, capture_output=True, timeout=TIMEOUT_S, env={**os.environ, _TRIAL: "1"}
            ).returncode
        except subprocess.TimeoutExpired:
            status = -1
        if status == WRONG:
            verdict = "computes wrongly"
        elif status not in (0, 1, 2):  # 1 and 2: Python could not run it, so nothing is known
            verdict = "crashes"
    note.write_text(verdict, encoding="utf-8")


def compiled_here() -> Library | str:
    """The code that this machine's compiler makes, or why there is none."""
    compiler = shutil.which(os.environ.get("CXX", "") or "c++") or shutil.which("g++")
    if compiler is None:
        return _none("there is no C++ compiler (g++ or clang++, or the one that CXX names)")
    try:
        store = CodeStore()
    except OSError as error:
        return _none(f"their code can't be kept ({error})")
    try:
        path = store.path(_recipe(compiler), lambda to: compile_code(compiler, to))
        try:
            return Library(path)
        except (OSError, AttributeError):  # the kept file is damaged: compile again
            store.discard(path)
            return Library(store.path(_recipe(compiler), lambda to: compile_code(compiler, to)))
    except subprocess.TimeoutExpired:
        return _none(f"{compiler} took longer than {TIMEOUT_S:g} s")
    except subprocess.CalledProcessError as error:
        return _none(f"{compiler} can't compile them ({first_line(ValueError(error.stderr))})")
    except AttributeError as error:
        return _none(f"what was compiled can't be used ({error})")
    except OSError as error:
        return _none(
            f"their code can't be kept in {store.folder} ({error.strerror or error}); set "
            "SPECSTREAM_CACHE to a folder that can be written"
        )


def loaded_library() -> Library | None:
    """The library if this process has compiled or loaded it already, else None; never compiles."""
    if not native_library.cache_info().currsize:
        return None
    made = native_library()
    return made if isinstance(made, Library) else None


def _none(why: str) -> str:
    said = f"compile: no native passes: {why}"
    _log.info("%s; passes on a CPU run through torch's operations, about half as fast", said)
    return said


def compile_code(compiler: str, to: Path) -> None:
    """Compile the passes for this CPU."""
    _log.info("compiling native passes for this CPU, some ten seconds; kept for later starts")
    began = time.perf_counter()
    command = [compiler, *FLAGS, *_HERE_ONLY, str(_SOURCE), "-o", str(to)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
    _log.info("compiled native passes in %.0f s", time.perf_counter() - began)


def _recipe(compiler: str) -> dict[str, object]:
    """Everything that compiled code depends on: it is compiled again when any of this changes."""
    sources = [_SOURCE, *sorted(_SOURCE.parent.glob("*.h"))]
    return {
        "sources": [hashlib.sha256(path.read_bytes()).hexdigest() for path in sources],
        "flags": FLAGS,
        "compiler": compiler,
        **machine_facts(),
    }


def machine_facts() -> dict[str, object]:
    """The system and the CPU, as JSON data."""
    return {"machine": [platform.system(), platform.machine(), _processor()]}


def _processor() -> str:
    """The model and feature flags of this CPU, for which the code is compiled (``-march=native``)."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(line for line in lines if line.startswith(("model name", "flags", "Features")))
