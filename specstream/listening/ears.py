"""A recogniser and a turn detector that belong together, and the line in front of the recogniser."""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import anyio
from anyio import to_thread

from specstream.errors import ConfigError
from specstream.listening.interfaces import EndOfTurnDetector, Recognizer, TurnDetector

__all__ = ["Ears", "WaitingLine"]

_log = logging.getLogger("specstream.ears")


class WaitingLine:
    """A line before the recogniser in which short turns go first.

    A turn's place is by the moment at which it came plus the length of its audio. So an answer of two
    seconds waits for none of two minutes that has not begun, and the long one waits for those that come
    during two minutes at most. Each listener waits with one turn at a time, which bounds the line.

    Args:
        workers: Recognitions that may run at once.
    """

    def __init__(self, workers: int = 1) -> None:
        self._free = workers
        self._numbers = itertools.count()
        self._waiting: list[tuple[float, int, anyio.Event]] = []

    @property
    def free(self) -> bool:
        """Whether a recognition could begin at once."""
        return self._free > 0

    @asynccontextmanager
    async def place(self, seconds: float) -> AsyncGenerator[None, None]:
        """Hold a place while the block runs; waits for one. ``seconds``: of audio that is recognised.

        Cancelling while it waits leaves the line.
        """
        await self._enter(seconds)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, seconds: float) -> None:
        if self._free:
            self._free -= 1
            return
        called = anyio.Event()
        entry = (anyio.current_time() + seconds, next(self._numbers), called)
        heapq.heappush(self._waiting, entry)
        try:
            await called.wait()
        except BaseException:
            if called.is_set():
                self._leave()  # the place was given in the same moment
            else:
                self._waiting.remove(entry)
                heapq.heapify(self._waiting)
            raise

    def _leave(self) -> None:
        if self._waiting:
            heapq.heappop(self._waiting)[2].set()
        else:
            self._free += 1


@dataclass(frozen=True, slots=True)
class Ears:
    """A recogniser and a turn detector, shared by any number of listeners of one event loop.

    A recognition holds a place in ``line``; partial transcripts are made only where one is free. Pauses
    are judged by sound one after another (``judging``).

    Raises:
        ConfigError: one of the two is something else.
    """

    recognizer: Recognizer
    detector: TurnDetector
    line: WaitingLine = field(init=False)
    judging: anyio.Semaphore = field(init=False, compare=False)

    def __post_init__(self) -> None:
        for what, part in (("recogniser", self.recognizer), ("turn detector", self.detector)):
            if isinstance(part, type) or not (
                hasattr(part, "capabilities") and hasattr(part, "open")
            ):
                raise ConfigError(
                    f"{part!r:.80} is no {what}: it must be an object that has capabilities and open"
                )

        object.__setattr__(self, "line", WaitingLine(self.recognizer.capabilities.workers))
        object.__setattr__(self, "judging", anyio.Semaphore(1))

    async def ended(self, pcm: bytes) -> float | None:
        """See `EndOfTurnDetector.ended`; None where the detector can't tell, or broke."""
        if not isinstance(self.detector, EndOfTurnDetector):
            return None
        judge = partial(self.detector.ended, pcm)
        try:
            async with self.judging:
                return float(await to_thread.run_sync(judge))
        except Exception:
            _log.exception("the end of a turn could not be judged by sound")
            return None

    @property
    def sample_rate(self) -> int:
        """The first sample rate of the recogniser, best first, that the detector takes, too.

        Raises:
            ConfigError: they share no rate.
        """
        both = self.detector.capabilities.sample_rates
        for rate in self.recognizer.capabilities.sample_rates:
            if rate in both:
                return rate
        names = self.recognizer.capabilities.name, self.detector.capabilities.name
        raise ConfigError(f"recogniser {names[0]!r} and turn detector {names[1]!r} share no rate")

    async def aclose(self) -> None:
        """Release the recogniser; idempotent. A turn detector has nothing to release."""
        await self.recognizer.aclose()
