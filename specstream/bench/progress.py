"""How far the experiment is: one line that is rewritten on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from typing import TextIO

__all__ = ["Progress", "forecast"]

_EVERY = 60.0  # seconds between lines where they can't be rewritten
_CLEAR = "\r\x1b[K"


class Progress:
    """Says on ``stream`` what is under way and for how much longer.

    On a terminal the line is rewritten, and taken away at the end; in a pipe or a file a line comes
    at most once in ``every`` seconds, so a short run leaves none.
    """

    def __init__(
        self,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        *,
        every: float = _EVERY,
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._every = every
        self._rewrites = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._last = clock()

    def phase(
        self, what: str, most: Callable[[], float | None] = lambda: None
    ) -> Callable[[int, int], None]:
        """Begin something that has a number of steps.

        Args:
            what: It, in words: "measuring prompt".
            most: Seconds that it may still take; None: as long as it needs.

        Returns:
            Called with the steps done and the steps in all.
        """
        began = self._clock()

        def tell(done: int, total: int) -> None:
            left = forecast(self._clock() - began, done, total, most())
            self._show(f"{what} {done} of {total}{left}")

        return tell

    def _show(self, line: str) -> None:
        now = self._clock()
        if self._rewrites:
            width = shutil.get_terminal_size().columns - 1  # a full line would wrap, and stay
            self._stream.write(_CLEAR + line[:width])
        elif now - self._last >= self._every:
            self._last = now
            self._stream.write(line + "\n")
        self._stream.flush()

    def clear(self) -> None:
        """Take the line away, so that others can be printed."""
        if self._rewrites:
            self._stream.write(_CLEAR)
            self._stream.flush()


def forecast(used: float, done: int, total: int, most: float | None = None) -> str:
    """The time left, in words with a comma before them: the steps to come take what those done took.

    Empty when nothing is done, which says nothing, and when all is.
    """
    if not 0 < done < total:
        return ""
    left = used / done * (total - done)
    if most is not None:
        left = min(left, max(0.0, most))
    if left < 60:
        return f", about {max(1, round(left))} s left"
    minutes = round(left / 60)
    return f", about {minutes} min left" if minutes < 90 else f", about {left / 3600:.1f} h left"
