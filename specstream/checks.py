"""Small checks and words that every layer uses: numbers, names, error lines, the cache folder."""

from __future__ import annotations

import difflib
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from specstream.errors import ConfigError, OutputError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = [
    "cache_folder",
    "check_numbers",
    "check_ranges",
    "counted",
    "first_line",
    "for_future",
    "meant",
    "problem",
    "sole_error",
    "valid_text",
    "writing",
]

_FINITE = sys.float_info.max
T = TypeVar("T")


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


def for_future(call: Callable[..., T], *args: object) -> T:
    """Call a function whose result goes into a future, which takes no StopIteration."""
    try:
        return call(*args)
    except StopIteration as error:
        raise RuntimeError("it raised StopIteration") from error


def valid_text(text: str) -> str:
    """``text`` as valid Unicode: halves of a character (surrogates) are joined, lone ones are U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def problem(error: ErrorDetails, known: Iterable[str]) -> str:
    """Describe one of pydantic's errors; an unknown key is compared with the ``known`` ones."""
    if error["type"] == "extra_forbidden":
        return "there is no such key" + meant(str(error["loc"][-1]), known)
    return error["msg"].removeprefix("Value error, ")


def sole_error(errors: BaseException) -> BaseException:
    """The error in a group of one, however deep: callers catch what was raised, not a group."""
    while isinstance(errors, BaseExceptionGroup) and len(errors.exceptions) == 1:
        errors = errors.exceptions[0]
    return errors


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number and its noun: ``"1 token"``, ``"2 tokens"``."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


@contextmanager
def writing(what: object) -> Iterator[None]:
    """Turn an OSError into an `OutputError` that names ``what`` is written and the reason."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"can't write {what}: {error.strerror or error}") from error


def cache_folder(name: str) -> Path:
    """Return the path of ``name`` in ``$SPECSTREAM_CACHE``, else in the user's cache (not created).

    The user's cache is ``specstream`` in ``$XDG_CACHE_HOME``, or in ``~/.cache`` without that variable.

    Raises:
        OSError: neither variable is set, and the user has no home folder.
    """
    chosen = os.environ.get("SPECSTREAM_CACHE")
    if chosen:
        return Path(chosen) / name
    root = os.environ.get("XDG_CACHE_HOME")
    if not root:
        try:
            root = str(Path.home() / ".cache")
        except RuntimeError as error:
            raise OSError("the user has no home folder; set SPECSTREAM_CACHE to a folder") from error
    return Path(root) / "specstream" / name
