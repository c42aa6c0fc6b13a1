"""SIGINT and SIGTERM: print one line and end, without waiting for work that can't be cancelled."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["ends_at_once", "handling", "tell_interrupted"]

Handler = Callable[[int, Any], Any]

_HOW = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


@contextmanager
def ends_at_once() -> Iterator[None]:
    """In this block SIGINT and SIGTERM end the process immediately.

    For imports and the reading of models: their threads can't be cancelled, and neither the event loop
    nor the interpreter ends before its threads do. Nothing is unwound, so no file may be half-written
    in the block. The process prints one line and exits with 128 plus the signal's number. An ignored
    signal stays ignored. Outside the main thread, where signals can't be handled, the block changes
    nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with handling(dict.fromkeys(_HOW, _end)):
        yield


@contextmanager
def handling(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """In this block signals have these handlers; an ignored signal stays ignored."""
    before = {number: signal.getsignal(number) for number in handlers}
    for number, handler in handlers.items():
        if before[number] != signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier if earlier is not None else signal.SIG_DFL)


def tell_interrupted(*, last: bool) -> int:
    """Report that the command was interrupted; returns the exit code.

    ``last`` ends the process here: the interpreter's own exit takes seconds once torch is loaded, and
    answers a second Ctrl-C with a traceback.
    """
    _tell(signal.SIGINT)
    if last:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(128 + signal.SIGINT)
    return 128 + signal.SIGINT


def _end(number: int, frame: object) -> None:
    _tell(number)
    os._exit(128 + number)


def _tell(number: int) -> None:
    """Print one line to the file descriptor: the signal may have interrupted a write to `sys.stderr`."""
    with suppress(OSError):
        rewritten = os.isatty(2) and os.environ.get("TERM") != "dumb"
        clear = b"\r\033[K" if rewritten else b""  # removes the progress line
        os.write(2, clear + f"specstream: {_HOW[signal.Signals(number)]}\n".encode())
