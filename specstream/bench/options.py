"""Checks of the values of ``--padded`` and ``--llama-cpp``, made before torch is imported."""

from __future__ import annotations

import importlib
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from specstream.errors import ConfigError

__all__ = ["Padding", "check_gguf", "parse_padding"]

_UNITS = {"M": 10**6, "B": 10**9}
_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True)
class Padding:
    """The wanted size: about ``parameters``, in ``layers`` (None: by the number of parameters)."""

    parameters: int
    layers: int | None = None


def parse_padding(text: str) -> Padding:
    """Parse ``"100M"`` or ``"8B:32"``: a number of parameters, and optionally of layers.

    Raises:
        ConfigError: not of that form, or out of range.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([MB])(?::(\d{1,6}))?", text.strip(), re.IGNORECASE)
    if not found:
        raise ConfigError(f"--padded takes a size such as 100M, or 8B:32 with layers, not {text!r}")
    size = float(found[1]) * _UNITS[found[2].upper()]
    layers = int(found[3]) if found[3] else None
    if not 1e6 <= size <= 100e9 or (layers is not None and not 1 <= layers <= 200):
        raise ConfigError(f"--padded {text}: from 1M to 100B parameters, at most 200 layers")
    return Padding(int(size), layers)


def check_gguf(file: str) -> None:
    """Check that llama-cpp-python can be imported and that ``file`` is a GGUF file.

    Raises:
        ConfigError: there is no such file, it isn't GGUF, or llama-cpp-python can't be imported.
    """
    try:
        with Path(file).open("rb") as opened:
            magic = opened.read(len(_MAGIC))
    except OSError as error:
        raise ConfigError(f"--llama-cpp: can't read {file}: {error.strerror or error}") from None
    if magic != _MAGIC:
        raise ConfigError(
            f"--llama-cpp: {file} is not a GGUF file (it doesn't begin with GGUF); convert the target "
            "with llama.cpp's convert_hf_to_gguf.py"
        )
    if importlib.util.find_spec("llama_cpp") is None:
        raise ConfigError(
            "--llama-cpp needs the package llama-cpp-python: pip install llama-cpp-python"
        )
    try:
        importlib.import_module("llama_cpp")
    except Exception as error:  # a missing native library raises errors of various types
        raise ConfigError(
            f"--llama-cpp: the package llama-cpp-python is installed but broken: {error}"
        ) from error
