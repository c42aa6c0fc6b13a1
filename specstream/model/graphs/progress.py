"""Progress of compiling: a start that takes minutes logs how many are left."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Progress"]

_log = logging.getLogger("specstream.model")


class Progress:
    """Counts the packages of an engine's models and logs each that has to be compiled.

    Args:
        total: Packages of all models together.
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
        """Count a package, whether it has to be compiled or is in the store."""
        self.check()
        self._number += 1

    @contextmanager
    def compiling(self, what: str) -> Iterator[None]:
        """Compile the package in this block; logs what and for how long.

        The forecast assumes the mean time for every package left, too much if some are in the store.
        """
        more = "kept for later starts"
        if self._took:
            left = sum(self._took) / len(self._took) * (self._total - self._number + 1)
            more = f"about {left:.0f} s left" if left < 90 else f"about {left / 60:.0f} min left"
        _log.info("compiling %d of %d (%s); %s", self._number, self._total, what, more)
        began = self._clock()
        yield
        self._took.append(self._clock() - began)
