"""What the voices share: marks, text without tags, a library's thread, and loading it once."""

from __future__ import annotations

import os
import re
import time
import unicodedata
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, lru_cache, wraps
from itertools import count
from math import inf
from queue import PriorityQueue
from threading import Lock
from typing import TypeVar, TypeVarTuple

from specstream.stages.interfaces import silent_at
from specstream.types import Mark, Span

__all__ = ["LibraryThread", "once", "pieces", "plain", "speakable", "take_marks", "thread_of", "tokens"]

_RUN = re.compile(r"[^\s<>\u2013\u2014\u2026]+")
_OUTER = (
    "\"'.,;:!?()[]{}<>*_`~|-\u2018\u2019\u201c\u201d\u00ab\u00bb"
    "\u3001\u3002\uff01\uff0c\uff1f\u00ad\u200c\u200d"
)
# Scripts that are written without spaces and where one character is about one syllable.
_SYLLABIC = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_PART = re.compile(f"[{_SYLLABIC}]|[^{_SYLLABIC}]+")
# Where `pieces` may cut, best first: after a sentence, after a clause, after a word.
_CUTS = [re.compile(f"(?s).*{end}") for end in (r"[.!?\u2026]\s", r"[,;:\u2014]\s", r"\s")]


@lru_cache(maxsize=4096)
def _spoken(char: str) -> str:
    """Return ``char``, or a space if it isn't spoken or could be a command to the voice."""
    if char in "\n\t\u00ad\u200c\u200d":  # the soft hyphen and the joiners belong to their word
        return char
    category = unicodedata.category(char)
    pictures = char >= "\u2190" and category in ("So", "Sk")
    arrows = "\u2190" <= char <= "\u21ff"
    emoji_parts = char in "\ufe0e\ufe0f\u20e3"
    return " " if category[0] == "C" or pictures or arrows or emoji_parts else char


def plain(text: str) -> str:
    """Blank emoji, arrows and control characters, one space for each character."""
    return "".join(map(_spoken, text))


def speakable(text: str) -> bool:
    """Whether there is a letter or a digit to say."""
    return any(map(str.isalnum, text))


def tokens(text: str) -> Iterator[Span]:
    """Yield the words of ``text``: runs between spaces and dashes, without the punctuation around them.

    Each Chinese character and each kana is a word of its own.
    """
    for run in _RUN.finditer(text):
        for part in _PART.finditer(text, run.start(), run.end()):
            word = part[0].rstrip(_OUTER)
            start = part.start() + len(word) - len(word.lstrip(_OUTER))
            if start < part.start() + len(word):
                yield Span(start, part.start() + len(word))


def pieces(text: str, limit: int) -> Iterator[Span]:
    """Cut ``text`` into stretches of at most ``limit`` characters, best between sentences or clauses."""
    start = 0
    while len(text) - start > limit:
        window = text[start + limit // 2 : start + limit]
        cut = next((found.end() for rule in _CUTS if (found := rule.match(window))), len(window))
        end = start + limit // 2 + cut
        yield Span(start, end)
        start = end
    if start < len(text):
        yield Span(start, len(text))


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
