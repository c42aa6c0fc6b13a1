"""What the voices share: the marks that go with a buffer, a library's thread, and loading it once."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, wraps
from threading import Lock
from typing import TypeVar, TypeVarTuple

from specstream.types import Mark

__all__ = ["once", "take_marks", "thread_of"]

Args = TypeVarTuple("Args")
T = TypeVar("T")


def once(make: Callable[[*Args], T]) -> Callable[[*Args], T]:
    """Give all calls with equal arguments, on any thread, what the first made; no exception is kept."""
    made, lock = cache(make), Lock()  # a cache alone may call its function twice

    @wraps(make)
    def shared(*args: *Args) -> T:
        with lock:
            return made(*args)

    return shared


def thread_of(library: str) -> ThreadPoolExecutor:
    """The one thread of this process that uses a library; a forked process gets its own."""
    return _thread(library, os.getpid())


@once
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
