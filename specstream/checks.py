"""Checks of values that users give, and words for what is wrong with them."""

from __future__ import annotations

import difflib
import sys
import textwrap
from collections.abc import Iterable
from numbers import Real
from typing import TYPE_CHECKING

from specstream.errors import ConfigError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = ["check_numbers", "check_ranges", "first_line", "meant", "problem"]

_FINITE = sys.float_info.max


def check_numbers(least: float, most: float = _FINITE, **values: float) -> None:
    """Check that each named value is a number from ``least`` to ``most``; by default, finite.

    Raises:
        ConfigError: names the first that isn't.
    """
    for name, value in values.items():
        if not (isinstance(value, Real) and least <= value <= most):
            end = f"to {most:g}" if most < _FINITE else "on"
            raise ConfigError(f"{name} must be a number from {least:g} {end}, not {value!r:.80}")


def check_ranges(settings: object, **ranges: tuple[float, float]) -> None:
    """Check the named attributes of ``settings`` as `check_numbers` does, each by its own range."""
    for name, (least, most) in ranges.items():
        check_numbers(least, most, **{name: getattr(settings, name)})


def meant(key: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean NAME?"`` for the closest known name; "" if none is close to ``key``."""
    near = difflib.get_close_matches(key, known, 1)
    return f"; did you mean {near[0]}?" if near else ""


def first_line(error: object) -> str:
    """An exception's first line, shortened for a message."""
    text = str(error).strip()
    if not text:
        return type(error).__name__
    return textwrap.shorten(text.splitlines()[0], 300, placeholder=" …")


def problem(error: ErrorDetails, known: Iterable[str]) -> str:
    """Describe one of pydantic's errors; an unknown key is compared with the ``known`` ones."""
    if error["type"] == "extra_forbidden":
        return "there is no such key" + meant(str(error["loc"][-1]), known)
    return error["msg"].removeprefix("Value error, ")
