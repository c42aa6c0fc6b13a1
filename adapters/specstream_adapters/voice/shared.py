"""What the voices share: the marks that go with a buffer, a library's thread, and loading it once."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, wraps
from threading import Lock
from typing import TypeVar

from specstream.types import Mark

__all__ = ["once", "take_marks", "thread_of"]

T = TypeVar("T")


def once(make: Callable[[], T]) -> Callable[[], T]:
    """Give all callers, on any thread, what the first call made; an exception isn't kept."""
    made, lock = cache(make), Lock()

    @wraps(make)
    def shared() -> T:
        with lock:
            return made()

    return shared


def thread_of(library: str) -> ThreadPoolExecutor:
    """The one thread of this process that uses a library; a forked process gets its own."""
    with _making:  # a cache alone may call its function twice
        return _thread(library, os.getpid())


_making = Lock()


@cache
def _thread(library: str, process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, library)


def take_marks(marks: list[Mark], begun: int, known: int | None = None) -> tuple[Mark, ...]:
    """Remove from ``marks`` those that begin before the sample ``begun``; return them in order of start.

    A word comes before its sounds. Marks that end after the sample ``known`` stay in ``marks``, because
    they may still change.
    """
    taken: list[Mark] = []
    left: list[Mark] = []
    for mark in marks:
        due = mark.samples.start < begun and (known is None or mark.samples.end <= known)
        (taken if due else left).append(mark)
    marks[:] = left
    return tuple(sorted(taken, key=lambda mark: (mark.samples.start, -mark.samples.end)))
