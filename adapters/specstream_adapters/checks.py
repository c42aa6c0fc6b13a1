"""Checks of options that all adapters share."""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Real

from specstream.errors import ConfigError

__all__ = ["delivery", "in_range", "one_of"]


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
