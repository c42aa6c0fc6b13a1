"""Imports onnxruntime, and packages that use it, without its telemetry."""

from __future__ import annotations

import importlib
import os
from typing import Any

__all__ = ["without_telemetry"]


def without_telemetry(name: str = "onnxruntime") -> Any:
    """Import a module that is, or imports, onnxruntime.

    Its releases from 1.32 on write a device id into the user's cache folder and look up a host of their
    vendor's, unless ``ORT_DISABLE_TELEMETRY`` is 1 before they are loaded. A value that the user has set
    stays.

    Raises:
        ImportError: the module is missing.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    return importlib.import_module(name)
