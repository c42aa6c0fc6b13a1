"""Settings of a method, given as texts with ``--set NAME=VALUE``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from specstream.errors import ConfigError, ModelUnsupported
from specstream.model.runner import ModelRunner
from specstream.train.kinds import SETTINGS, check_settings
from specstream.train.options import TrainOptions

__all__ = ["depths", "flag", "layers_of", "number", "positive", "settings_of", "whole"]

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
    assert sorted(known) == sorted(SETTINGS[options.kind])
    check_settings(options)
    found: dict[str, Any] = {}
    for name, text in options.settings.items():
        if options.init is not None and name not in kept:
            raise ConfigError(f"--set {name}={text}: the folder of --init decides this")
        try:
            found[name] = known[name](text)
        except ValueError as error:
            raise ConfigError(f"--set {name}={text}: {error}") from None
    return found


def _reader(parse: Reader, fits: Callable[[Any], bool], says: str) -> Reader:
    """Return a parser of the values that fit, which ``says`` describes."""

    def read(text: str) -> Any:
        try:
            value = parse(text)
        except (ValueError, KeyError):
            value = None
        if value is None or not fits(value):
            raise ValueError(f"it must be {says}")
        return value

    return read


def whole(least: int, most: int) -> Reader:
    """Return a parser of whole numbers from ``least`` to ``most``."""
    return _reader(
        int, range(least, most + 1).__contains__, f"a whole number from {least} to {most}"
    )


def number(*allowed: int) -> Reader:
    """Return a parser of numbers that takes only those ``allowed``."""
    return _reader(int, allowed.__contains__, f"one of {', '.join(map(str, allowed))}")


def depths(most: int) -> Reader:
    """Return a parser of different numbers of layers from 1 to ``most``, separated by commas."""

    def fits(found: tuple[int, ...]) -> bool:
        return all(1 <= one <= most for one in found) and len(set(found)) == len(found)

    says = f"different numbers of layers from 1 to {most}, as in 1,2"
    return _reader(lambda text: tuple(map(int, text.split(","))), fits, says)


positive = _reader(float, lambda value: 0.0 < value < float("inf"), "a number above 0")
"""Parses a finite number above 0."""

flag = _reader(
    lambda text: {"true": True, "false": False}[text.lower()], lambda value: True, "true or false"
)
"""Parses ``true`` or ``false``."""


def layers_of(target: ModelRunner, what: str) -> int:
    """Return the target's number of layers.

    Raises:
        ModelUnsupported: it has fewer than two, and ``what`` begins or ends between two.
    """
    count = len(target.decoder.weights.layers)
    if count < 2:
        raise ModelUnsupported(f"{what} needs a target of two layers at least")
    return count
