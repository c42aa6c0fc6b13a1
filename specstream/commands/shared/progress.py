"""Progress lines on stderr while models load and while benchmarks run, and the engine's log."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TextIO, TypeVar, cast

from specstream.commands.shared.terminal import ends_at_once
from specstream.engine.engine import Engine
from specstream.engine.openai.engine import OpenAIEngine

__all__ = ["Progress", "forecast", "loaded", "show_log"]

E = TypeVar("E", bound=Engine | OpenAIEngine)

_CLEAR = "\r\033[K"
_REDRAWN_S = 0.2  # seconds between updates while models load


class Progress:
    """One line on ``stream`` about the work under way.

    On a terminal the line is rewritten, and removed at the end; elsewhere a line is written at most
    once in ``every`` seconds, so that a short run writes none.
    """

    def __init__(
        self, stream: TextIO, clock: Callable[[], float] = time.monotonic, *, every: float = 60.0
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._every = every
        self._last = clock()
        self._stage = ""
        self.rewrites = stream.isatty() and os.environ.get("TERM") != "dumb"

    def stage(self, name: str, line: str = "") -> bool:
        """Write ``line`` (default: the name) if this is another stage of the work than before."""
        if name == self._stage:
            return False
        self._stage = name
        self.clear()
        self._stream.write((line or name) + "\n")
        self._stream.flush()
        return True

    def phase(
        self, what: str, most: Callable[[], float | None] = lambda: None
    ) -> Callable[[int, int], None]:
        """Begin work of many steps; return a function to be called with (steps done, all steps).

        Args:
            what: The name of a step, such as "prompt".
            most: Returns the most seconds that the remaining steps may take; None: no limit.
        """
        began = self._clock()

        def tell(done: int, total: int) -> None:
            left = forecast(self._clock() - began, done, total, most())
            self.show(f"{what} {min(done, total)} of {total}{left}")

        return tell

    def show(self, line: str) -> None:
        """Replace the line."""
        now = self._clock()
        if self.rewrites:
            width = shutil.get_terminal_size().columns - 1  # a full line would wrap, and stay
            self._stream.write(_CLEAR + line[:width])
        elif now - self._last >= self._every:
            self._last = now
            self._stream.write(line + "\n")
        self._stream.flush()

    def clear(self) -> None:
        """Remove the line, so that others can be printed."""
        if self.rewrites:
            self._stream.write(_CLEAR)
            self._stream.flush()


def forecast(used: float, done: float, total: float, most: float | None = None) -> str:
    """The remaining time in words, after a comma, at the pace of the steps done; empty if unknown."""
    if not 0 < done < total:
        return ""
    left = used / done * (total - done)
    if most is not None:
        left = min(left, max(0.0, most))
    if left < 60:
        return f", about {max(1, round(left))} s left"
    minutes = round(left / 60)
    return f", about {minutes} min left" if minutes < 90 else f", about {left / 3600:.1f} h left"


@asynccontextmanager
async def loaded(engine: E) -> AsyncGenerator[E, None]:
    """Run ``engine`` in the block. While it loads, a terminal shows the seconds.

    An interrupt while the models load ends the process (see `ends_at_once`), so the caller must not
    have half-written files then.

    Raises:
        ModelError, ConfigError: see `Engine`.
    """
    async with AsyncExitStack() as stack:
        with ends_at_once():
            await asyncio.sleep(0)  # raises an earlier cancellation before anything has begun
            drawing = asyncio.create_task(_draw("loading the models"))
            try:
                running = cast(E, await stack.enter_async_context(engine))
            finally:
                drawing.cancel()
                await asyncio.wait({drawing})
        yield running


async def _draw(what: str) -> None:
    progress, clock = Progress(sys.stderr), asyncio.get_running_loop().time
    began = clock()
    try:
        while True:
            if progress.rewrites:
                progress.show(f"{what} … {clock() - began:.0f} s")
            # Also wakes the loop: a signal that came just before it went to sleep doesn't.
            await asyncio.sleep(_REDRAWN_S)
    finally:
        progress.clear()


class _Lines(logging.Handler):
    """Writes log records to stderr, over the progress line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Called by the logger."""
        clear = _CLEAR if Progress(sys.stderr).rewrites else ""
        print(f"{clear}specstream: {self.format(record)}", file=sys.stderr, flush=True)


def show_log(*, info: bool) -> None:
    """Show warnings of the engine and the models; with ``info`` also their progress messages."""
    for name in ("specstream.engine", "specstream.model"):
        log = logging.getLogger(name)
        if not any(isinstance(handler, _Lines) for handler in log.handlers):
            log.addHandler(_Lines(logging.INFO))
        if info:
            log.setLevel(logging.INFO)
