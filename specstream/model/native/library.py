"""The native library: C++ of this folder, compiled for this CPU once and kept for later starts."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import time
from functools import cache
from pathlib import Path

import torch

from specstream.errors import ConfigError
from specstream.model.native.store import CodeStore
from specstream.model.native.structs import Chain, Layer, Level, Matrix, Pass, Sizes
from specstream.model.places import first_line

__all__ = ["Library", "library", "loaded_library", "native_library"]

_log = logging.getLogger("specstream.model")

_SOURCES = (
    *("lanes.h", "team.h", "matrix.h", "tiles.h", "quads.h", "tiles8.h"),
    *("products.h", "attention.h", "layers.h", "chain.h", "level.h"),
    *("sampling.h", "passes.cpp"),
)
_FLAGS = (
    *("-std=c++17", "-O3", "-march=native"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"),
)
_THREADED = ("-fopenmp",)
_TIMEOUT_S = 300.0


class Library:
    """The functions of ``passes.cpp``; a pass holds no Python lock.

    Sampling does: a row takes less time than another thread with the lock, which would be waited for.

    Raises:
        OSError: the file can't be loaded.
        AttributeError: one of another version.
    """

    def __init__(self, path: Path) -> None:
        code = ctypes.CDLL(str(path))
        pointer, size, count = ctypes.POINTER, ctypes.c_int64, ctypes.c_int32
        self.run_layers = code.run_layers
        self.run_layers.argtypes = [pointer(Sizes), pointer(Layer), size, pointer(Pass), count]
        self.run_layers.restype = None
        self.run_chain = code.run_chain
        self.run_chain.argtypes = [*self.run_layers.argtypes[:-1], pointer(Chain), count]
        self.run_chain.restype = None
        self.run_level = code.run_level
        self.run_level.argtypes = [
            *(pointer(Sizes), pointer(Layer), pointer(Pass)),
            *(pointer(Level), count),
        ]
        self.run_level.restype = None
        self.run_product = code.run_product
        address = ctypes.c_void_p
        self.run_product.argtypes = [pointer(Matrix), address, size, address, count]
        self.run_product.restype = None
        brief = ctypes.PyDLL(str(path))
        self.run_softmax = brief.run_softmax
        self.run_softmax.argtypes = [address, count, size, size, ctypes.c_float, address]
        self.run_softmax.restype = None
        self.run_drawn = brief.run_drawn
        self.run_drawn.argtypes = [address, size, ctypes.c_double]
        self.run_drawn.restype = size
        self.run_without = brief.run_without
        self.run_without.argtypes = [address, size, size, address]
        self.run_without.restype = None
        self.run_residual = brief.run_residual
        self.run_residual.argtypes = [address, address, size, ctypes.c_float, address]
        self.run_residual.restype = None
        self.run_distributions = brief.run_distributions
        self.run_distributions.argtypes = [address, size, size, ctypes.c_float]
        self.run_distributions.restype = count
        self.run_spread = brief.run_spread
        self.run_spread.argtypes = [address, address, size, size, size, ctypes.c_float, address]
        self.run_spread.restype = None
        self.run_keyed = brief.run_keyed
        self.run_keyed.argtypes = [address, address, size, size, size]
        self.run_keyed.restype = size


def library(wanted: bool | None) -> Library | None:
    """The library, compiled now if it never was.

    Args:
        wanted: None: None where it can't be had, with a line in the log; False: None.

    Raises:
        ConfigError: it is wanted and can't be had: no working C++ compiler, or the folder of compiled
            code can't be written.
    """
    if wanted is False:
        return None
    made = native_library()
    if isinstance(made, Library):
        return made
    if wanted:
        raise ConfigError(made)
    return None


@cache
def native_library() -> Library | str:
    """The library, or in words why there is none; looked for once in a process."""
    compiler = shutil.which(os.environ.get("CXX", "") or "c++") or shutil.which("g++")
    if compiler is None:
        return _none("there is no C++ compiler (g++ or clang++, or the one that CXX names)")
    store = CodeStore()
    try:
        path = store.path(_recipe(compiler), lambda to: _compile(compiler, to))
        try:
            return Library(path)
        except (OSError, AttributeError):  # damaged: once more
            store.discard(path)
            return Library(store.path(_recipe(compiler), lambda to: _compile(compiler, to)))
    except subprocess.TimeoutExpired:
        return _none(f"{compiler} took longer than {_TIMEOUT_S:g} s")
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
    """The library if something in this process had it compiled or loaded; never compiles."""
    if not native_library.cache_info().currsize:
        return None
    made = native_library()
    return made if isinstance(made, Library) else None


def _none(why: str) -> str:
    said = f"compile: no native passes: {why}"
    _log.info("%s; passes on a CPU run through torch's operations, about half as fast", said)
    return said


def _compile(compiler: str, to: Path) -> None:
    _log.info("compiling native passes for this CPU, some ten seconds; kept for later starts")
    began = time.perf_counter()
    source = str(Path(__file__).with_name(_SOURCES[-1]))
    for threaded in (_THREADED, ()):
        command = [compiler, *_FLAGS, *threaded, "-shared", "-fPIC", source, "-o", str(to)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)
        except subprocess.CalledProcessError:
            if not threaded:
                raise
            continue  # Apple's compiler has no OpenMP: one thread
        _log.info("compiled native passes in %.0f s", time.perf_counter() - began)
        return


def _recipe(compiler: str) -> dict[str, object]:
    """All that the code depends on."""
    here = Path(__file__).parent
    return {
        "sources": [hashlib.sha256((here / name).read_bytes()).hexdigest() for name in _SOURCES],
        "flags": [*_FLAGS, *_THREADED],
        "compiler": compiler,
        "torch": torch.__version__,  # whose threads it shares
        "machine": [platform.system(), platform.machine(), _processor()],
    }


def _processor() -> str:
    """The model and the abilities of this CPU: code is compiled for just these."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(line for line in lines if line.startswith(("model name", "flags", "Features")))
