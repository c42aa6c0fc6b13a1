"""What adapters share: checks of options, forms of English words, onnxruntime without telemetry."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Collection, Iterator
from numbers import Real
from typing import Any

from specstream.errors import ConfigError

__all__ = ["delivery", "in_range", "one_of", "stems", "without_telemetry"]


def in_range(name: str, value: float, low: float, high: float, *, whole: bool = False) -> None:
    """Refuse an option that is no number from ``low`` to ``high``.

    Raises:
        ConfigError: it isn't.
    """
    if not isinstance(value, int if whole else Real) or not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        end = f"to {high}" if high < math.inf else "on"
        raise ConfigError(f"{name} must be {kind} from {low} {end}, not {value!r:.80}")


def delivery(speed: float, pitch: float) -> None:
    """Refuse a speed or a pitch that isn't from half to twice the usual, for any voice alike.

    Raises:
        ConfigError: one of them isn't.
    """
    in_range("speed", speed, 0.5, 2)
    in_range("pitch", pitch, 0.5, 2)


def one_of(what: str, name: str, known: Collection[str]) -> None:
    """Refuse a name that isn't known.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in known:
        raise ConfigError(f"no {what} is called {name!r:.40}; there are: {', '.join(known)}")


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


_ENDINGS = (
    ("ies", "y"), ("es", ""), ("s", ""), ("ied", "y"), ("ed", ""), ("ed", "e"),
    ("ing", ""), ("ing", "e"),
)  # fmt: skip


def stems(word: str) -> Iterator[str]:
    """The word and those that it may be a form of: "nodding", "nods" and "nodded" give "nod", too."""
    yield word
    for ending, instead in _ENDINGS:
        stem = word.removesuffix(ending)
        if stem != word and len(stem) >= (2 if instead == "y" else 3):
            yield stem + instead
            if ending in ("ed", "ing") and stem[-1] == stem[-2]:
                yield stem[:-1]
