"""What the voices share: the marks that go with a buffer, a library's thread, and loading it once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, wraps
from itertools import count
from math import inf
from queue import PriorityQueue
from threading import Lock
from typing import TypeVar, TypeVarTuple

from specstream.pipeline.interfaces import silent_at
from specstream.types import Mark

__all__ = ["LibraryThread", "once", "take_marks", "thread_of"]

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


class LibraryThread:
    """One thread. Of the jobs that wait, the one goes first whose listener would hear silence first."""

    def __init__(self, library: str) -> None:
        self._thread = ThreadPoolExecutor(1, library)
        self._waiting: PriorityQueue[tuple[float, int, Callable[[], None]]] = PriorityQueue()
        self._numbers = count()

    def submit(self, job: Callable[[*Args], T], *args: *Args) -> Future[T]:
        """Run ``job`` on the thread. One without a listener waits for none that comes later."""
        due, done = silent_at(), Future[T]()

        def run() -> None:
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(job(*args))
                except BaseException as error:
                    done.set_exception(error)

        self._waiting.put((due if due < inf else time.monotonic(), next(self._numbers), run))
        self._thread.submit(self._run_next)
        return done

    def _run_next(self) -> None:
        self._waiting.get_nowait()[-1]()


def thread_of(library: str) -> LibraryThread:
    """The one thread of this process that uses a library; a forked process gets its own."""
    return _thread(library, os.getpid())


@once
def _thread(library: str, process: int) -> LibraryThread:
    return LibraryThread(library)


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
