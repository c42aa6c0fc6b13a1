"""A recogniser and a turn detector that belong together, and the recognition of one turn by them."""

from __future__ import annotations

import heapq
import itertools
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import anyio
from anyio import to_thread

from specstream.errors import AdapterFailed, ConfigError
from specstream.listening.events import ListenerSettings
from specstream.listening.interfaces import (
    EndOfTurnDetector,
    Recognizer,
    RecognizerStream,
    Transcript,
    TurnDetector,
)

__all__ = ["Ears", "Recognition", "WaitingLine"]

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
            if isinstance(part, type) or not (hasattr(part, "capabilities") and hasattr(part, "open")):
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


_CLOSE_S = 1.0  # seconds that a stream may take to close

_WORD = re.compile(r"\w+")


class Recognition:
    """One turn's stream of the recogniser. Its error is kept in ``error`` and raised by `finish`."""

    def __init__(self, turn: int, ears: Ears, rate: int, settings: ListenerSettings) -> None:
        self.turn = turn
        self.transcript = Transcript("")
        self.error: AdapterFailed | None = None
        self.dropped = False
        """The turn was cleared: nobody wants its transcript."""
        self.pause: int | None = None
        """The number of the pause that the speaker makes now; None while the speaker speaks."""
        self.level: float | None = None
        """The level of the turn's audio in dBFS, once it is over."""
        self._line = ears.line
        self._settings = settings
        self._languages = ears.recognizer.capabilities.languages
        self._per_ms = 2 * rate / 1000  # bytes
        self._taken = 0  # bytes
        self._fresh = 0  # bytes that no transcript includes
        self._words: list[str] = []  # of the last transcript
        self._grown_at = self._read_to = 0  # bytes of audio when they came, and in the last one
        self._same = 0  # transcripts with the same text, one after another
        self._looked: int | None = None  # the last pause for which a transcript was asked
        self._known: int | None = None  # the last pause whose transcript is known
        self._rest_until = 0.0  # no partial transcript before that moment
        self._stream: RecognizerStream | None = None
        try:
            self._stream = ears.recognizer.open(rate, language=settings.language)
        except Exception as error:
            self._fail(error)

    def add(self, pcm: bytes) -> None:
        """Take the turn's next audio."""
        self._taken += len(pcm)
        self._fresh += len(pcm)
        if self._stream is not None and self.error is None:
            try:
                self._stream.add(pcm)
            except Exception as error:
                self._fail(error)

    @property
    def language(self) -> str | None:
        """The transcript's language: as asked for, as told, or the only one that is recognised."""
        only = self._languages[0] if len(self._languages) == 1 else None
        return self._settings.language or self.transcript.language or only

    @property
    def deciding(self) -> bool:
        """Whether the speaker is in a pause whose transcript is not known yet."""
        return self.pause is not None and self.pause != self._known

    def due(self) -> bool:
        """Whether `look` should be called now: in a new pause, or after enough new audio."""
        if self.pause is not None and self.pause != self._looked:
            return True
        partial_ms = self._settings.partial_ms
        return (
            partial_ms is not None
            and self.error is None
            and self._fresh >= partial_ms * self._per_ms
            and anyio.current_time() >= self._rest_until
            and self._line.free
        )

    @property
    def stalled_s(self) -> float:
        """Seconds of recognised audio that changed no word; 0 before the first word."""
        return (self._read_to - self._grown_at) / self._per_ms / 1e3 if self._words else 0.0

    @property
    def again(self) -> bool:
        """Whether the last two transcripts had the same text, for the first time."""
        return self._same == 1 and self.transcript.has_words

    async def look(self) -> bool:
        """Update ``transcript``; returns whether its text changed. Raises nothing."""
        self._looked, self._fresh, before = self.pause, 0, self.transcript.text
        pause, taken, known = self.pause, self._taken, self.transcript
        if self._stream is not None and self.error is None:
            began = anyio.current_time()
            with suppress(AdapterFailed):
                self.transcript = await self._ask(self._stream.partial)
            now = anyio.current_time()
            self._rest_until = now + (now - began)  # so partials take at most half of the time
        self._known = pause
        if self.transcript is not known:  # else the recogniser wasn't sure of anything new
            self._read_to = taken
        words = _WORD.findall(self.transcript.text.lower())
        if words != self._words:
            self._words, self._grown_at = words, taken
        changed = self.transcript.text != before
        self._same = 0 if changed else self._same + 1
        return changed

    async def finish(self) -> Transcript:
        """Return the turn's final transcript.

        Raises:
            AdapterFailed: the recogniser broke, here or before, or passed the deadline.
        """
        if self.error is None and self._stream is not None:
            self.transcript = await self._ask(self._stream.finish)
        if self.error is not None:
            raise self.error
        return self.transcript

    async def aclose(self) -> None:
        """Release the stream; idempotent. A stream that can't be closed is logged."""
        stream, self._stream = self._stream, None
        if stream is None:
            return
        try:
            with anyio.fail_after(_CLOSE_S):
                await stream.aclose()
        except Exception:
            _log.warning("a recogniser's stream could not be closed", exc_info=True)

    async def _ask(self, question: Callable[[], Awaitable[Transcript]]) -> Transcript:
        try:
            async with self._line.place(self._taken / self._per_ms / 1e3):
                with anyio.fail_after(self._settings.deadline_s):
                    answer = await question()
            if not isinstance(answer, Transcript):
                raise AdapterFailed(f"the recogniser gave a {type(answer).__name__}, no Transcript")
            return answer
        except TimeoutError:
            late = f"the recogniser took longer than {self._settings.deadline_s:g} s"
            raise self._fail(AdapterFailed(late)) from None
        except Exception as error:
            raise self._fail(error) from error

    def _fail(self, error: Exception) -> AdapterFailed:
        if not isinstance(error, AdapterFailed):
            _log.error("the recogniser broke", exc_info=error)
            error = AdapterFailed(f"the recogniser broke: {error}")
        self.error = error
        return error
