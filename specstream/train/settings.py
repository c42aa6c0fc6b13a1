"""Settings of a method, given as texts with ``--set NAME=VALUE``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from specstream.config import meant
from specstream.errors import ConfigError
from specstream.train.options import TrainOptions

__all__ = ["depths", "flag", "number", "positive", "settings_of", "whole"]

Reader = Callable[[str], Any]


def settings_of(
    options: TrainOptions, known: Mapping[str, Reader], *, kept: Collection[str] = ()
) -> dict[str, Any]:
    """Parse the settings of ``options``.

    Args:
        options: The options of the training.
        known: By name, a setting's parser, which raises ValueError with the values that are allowed.
        kept: Names of settings that are allowed with ``--init``, whose folder fixes the others.

    Raises:
        ConfigError: an unknown setting, an invalid value, or an option of other kinds.
    """
    if options.size:
        raise ConfigError(f"--size is an option of train draft, not of train {options.kind}")
    found: dict[str, Any] = {}
    for name, text in options.settings.items():
        if name not in known:
            raise ConfigError(
                f"train {options.kind} has no setting {name!r}{meant(name, known)}; there are: "
                + ", ".join(sorted(known))
            )
        if options.init is not None and name not in kept:
            raise ConfigError(f"--set {name}={text}: the folder of --init decides this")
        try:
            found[name] = known[name](text)
        except ValueError as error:
            raise ConfigError(f"--set {name}={text}: {error}") from None
    return found


def whole(least: int, most: int) -> Reader:
    """Return a parser of whole numbers from ``least`` to ``most``."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise ValueError(f"it must be a whole number from {least} to {most}")
        return value

    return read


def positive(text: str) -> float:
    """Parse a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise ValueError("it must be a number above 0")
    return value


def number(*allowed: int) -> Reader:
    """Return a parser of numbers that takes only those ``allowed``."""

    def read(text: str) -> int:
        if text not in map(str, allowed):
            raise ValueError(f"it must be one of {', '.join(map(str, allowed))}")
        return int(text)

    return read


def flag(text: str) -> bool:
    """Parse ``true`` or ``false``."""
    if text.lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return text.lower() == "true"


def depths(most: int) -> Reader:
    """Return a parser of different numbers of layers from 1 to ``most``, separated by commas."""

    def read(text: str) -> tuple[int, ...]:
        parts = text.split(",")
        right = all(one.strip().isdecimal() and 1 <= int(one) <= most for one in parts)
        if not right or len({int(one) for one in parts}) != len(parts):
            raise ValueError(f"it must be different numbers of layers from 1 to {most}, as in 1,2")
        return tuple(int(one) for one in parts)

    return read
