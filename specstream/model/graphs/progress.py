"""How far the compiling is: what takes minutes says how many."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Progress"]

_log = logging.getLogger("specstream.model")


class Progress:
    """Counts the packages of an engine's models, and tells of each that has to be compiled.

    Args:
        total: Packages that are to come, of all models together.
        check: Called before each package; what it raises ends the compiling.
        clock: Seconds.
    """

    def __init__(
        self,
        total: int,
        check: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.check = check
        self._total = total
        self._clock = clock
        self._number = 0
        self._took: list[float] = []

    def next(self) -> None:
        """Another package is wanted, compiled or kept from an earlier start."""
        self.check()
        self._number += 1

    @contextmanager
    def compiling(self, what: str) -> Iterator[None]:
        """The package has to be compiled, in this block.

        The forecast: what is to come takes as long as what came. Where some of it is kept from an
        earlier start, that is too much.
        """
        more = "kept for later starts"
        if self._took:
            left = sum(self._took) / len(self._took) * (self._total - self._number + 1)
            more = f"about {left:.0f} s left" if left < 90 else f"about {left / 60:.0f} min left"
        _log.info("compiling %d of %d (%s); %s", self._number, self._total, what, more)
        began = self._clock()
        yield
        self._took.append(self._clock() - began)
