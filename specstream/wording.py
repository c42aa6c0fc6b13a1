"""Helpers for what is printed and written: counts with their nouns, and errors of writing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from specstream.errors import OutputError

__all__ = ["counted", "writing"]


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
