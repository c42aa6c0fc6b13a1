"""What one sees while models load, and how one gets out of it."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from specstream.commands.interrupts import ends_at_once
from specstream.session import Engine

__all__ = ["loaded", "show_log"]

_CLEAR = "\r\033[K"
_REDRAWN_S = 0.2


@asynccontextmanager
async def loaded(engine: Engine) -> AsyncGenerator[Engine, None]:
    """``engine``, running in the block. While it loads, a terminal shows for how long already.

    Nothing may be half-done outside the block: an interrupt while the models load ends the process,
    see `ends_at_once`.

    Raises:
        ModelError, ConfigError: see `Engine`.
    """
    async with AsyncExitStack() as stack:
        with ends_at_once():
            await asyncio.sleep(0)  # an interrupt from before ends it here, with nothing begun
            async with _shown("loading the models"):
                running = await stack.enter_async_context(engine)
        yield running


@asynccontextmanager
async def _shown(what: str) -> AsyncGenerator[None, None]:
    """A line that is written over and over; none where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield
        return
    drawing = asyncio.create_task(_draw(what))
    try:
        yield
    finally:
        drawing.cancel()
        await asyncio.wait({drawing})
        print(end=_CLEAR, file=sys.stderr, flush=True)


async def _draw(what: str) -> None:
    clock = asyncio.get_running_loop().time
    began = clock()
    while True:
        print(end=f"{_CLEAR}{what} … {clock() - began:.0f} s", file=sys.stderr, flush=True)
        await asyncio.sleep(_REDRAWN_S)


class _Lines(logging.Handler):
    """What is logged, line by line on stderr, over what is shown there while models load."""

    def emit(self, record: logging.LogRecord) -> None:
        """Called by the logger."""
        clear = _CLEAR if sys.stderr.isatty() else ""
        print(f"{clear}specstream: {self.format(record)}", file=sys.stderr, flush=True)


def show_log(*, info: bool) -> None:
    """Show warnings of the engine and the models; with ``info`` also how far compiling has come."""
    for name in ("specstream.engine", "specstream.model"):
        log = logging.getLogger(name)
        if not any(isinstance(handler, _Lines) for handler in log.handlers):
            log.addHandler(_Lines(logging.INFO))
        if info:
            log.setLevel(logging.INFO)
