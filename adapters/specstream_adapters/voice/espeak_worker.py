"""One thread for one library: takes utterances in turn and hands their audio to asyncio.

An utterance whose consumer lags stops the library from running on, unless another one waits for it:
then the piece of text that is being spoken is finished into memory, so that no voice ever waits for
another voice's consumer. Either way an utterance holds at most ``UNREAD`` buffers and one piece.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Literal, TypeVar

from specstream.errors import AdapterError, AdapterFailed
from specstream.types import Span, SpeechBuffer
from specstream_adapters.voice.espeak_library import EspeakLibrary, LibraryEvent
from specstream_adapters.voice.espeak_marks import MarkTracker
from specstream_adapters.voice.text import pieces, speakable

__all__ = ["PIECE", "UNREAD", "EspeakWorker", "Settings", "Utterance", "shared_worker"]

UNREAD = 8
"""Buffers that may wait for a consumer before the library is stopped."""
PIECE = 500
"""Most characters given to the library at once."""

T = TypeVar("T")
Settings = tuple[str, int, int]
"""Voice, words a minute, pitch."""

_lock = threading.Lock()
_shared: EspeakWorker | None = None


def shared_worker() -> EspeakWorker:
    """The process's one worker, made on first use.

    Raises:
        AdapterUnavailable: no usable library was found.
    """
    global _shared
    with _lock:
        if _shared is None:
            _shared = EspeakWorker(EspeakLibrary())
        return _shared


class EspeakWorker:
    """Serves any number of voices with one library, first come, first served."""

    def __init__(self, library: EspeakLibrary) -> None:
        self.library = library
        self.changed = threading.Condition()  # guards the jobs and every utterance's state
        self._jobs: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None

    @property
    def contended(self) -> bool:
        """Whether somebody waits for the library."""
        return bool(self._jobs)

    def submit(self, job: Callable[[], None]) -> None:
        """Run ``job`` on the worker's thread, after those that were there before."""
        with self.changed:
            if self._thread is None or not self._thread.is_alive():  # a fork has no threads
                self._thread = threading.Thread(target=self._run, name="espeak-ng", daemon=True)
                self._thread.start()
            self._jobs.append(job)
            self.changed.notify_all()

    def call(self, work: Callable[[EspeakLibrary], T]) -> T:
        """Run ``work`` on the worker's thread and wait for it (milliseconds)."""
        result: Future[T] = Future()

        def job() -> None:
            try:
                result.set_result(work(self.library))
            except BaseException as error:
                result.set_exception(error)

        self.submit(job)
        return result.result()

    def _run(self) -> None:
        while True:
            with self.changed:
                while not self._jobs:
                    self.changed.wait()
                job = self._jobs.popleft()
            job()


class Utterance:
    """One phrase on its way from the library to a consumer on the running event loop.

    Args:
        worker: Whose library speaks.
        settings: How.
        text: What, as `plain` left it.
        first_char: Where ``text`` lies in the reply.
    """

    def __init__(
        self, worker: EspeakWorker, settings: Settings, text: str, first_char: int
    ) -> None:
        self._worker = worker
        self._settings = settings
        self._text = text
        self._first_char = first_char
        self._pieces: Iterator[Span] = pieces(text, PIECE)
        self._samples = 0
        self._buffers: deque[SpeechBuffer] = deque()
        self._state: Literal["parked", "running", "ended"] = "parked"
        self._error: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()

    async def next(self) -> SpeechBuffer | None:
        """The next buffer, or None after the last. Cancelling the call loses nothing.

        Raises:
            AdapterFailed: the library broke.
        """
        while True:
            with self._worker.changed:
                self._arrived.clear()
                buffer = self._buffers.popleft() if self._buffers else None
                ended = self._state == "ended"
                if self._state == "parked" and len(self._buffers) < UNREAD:
                    self._state = "running"
                    self._worker.submit(self._speak_piece)
                self._worker.changed.notify_all()
            if buffer is not None:
                return buffer
            if ended and self._error is not None:
                if isinstance(self._error, AdapterError):
                    raise self._error
                raise AdapterFailed(f"espeak-ng broke: {self._error}") from self._error
            if ended:
                return None
            await self._arrived.wait()

    def close(self) -> None:
        """Stop speaking within one buffer; what was not read is dropped. Idempotent."""
        self._stop()
        self._arrived.set()

    def _stop(self) -> None:
        with self._worker.changed:
            self._state = "ended"
            self._buffers.clear()
            self._worker.changed.notify_all()

    def _speak_piece(self) -> None:
        """On the worker's thread: speak the next piece that has words, then let others in."""
        state: Literal["parked", "ended"] = "ended"
        try:
            for piece in self._pieces:
                text = self._text[piece.start : piece.end]
                if not self._wanted():
                    break
                if speakable(text):
                    self._speak(text, self._first_char + piece.start)
                    state = "parked"
                    break
        except BaseException as error:
            self._error = error
        with self._worker.changed:
            if self._state == "running":
                self._state = state
        self._wake()

    def _speak(self, text: str, first_char: int) -> None:
        self._worker.library.choose(*self._settings)
        tracker = MarkTracker(text, first_char, self._samples)

        def sink(pcm: bytes, events: Sequence[LibraryEvent]) -> bool:
            tracker.feed(pcm, events)
            return all(self._offer(buffer) for buffer in tracker.ready()) and self._wanted()

        self._worker.library.speak(text, sink)
        for buffer in tracker.finish():
            self._offer(buffer)
        self._samples += tracker.samples

    def _wanted(self) -> bool:
        return self._state == "running"

    def _offer(self, buffer: SpeechBuffer) -> bool:
        """Wait for room (see the module's text), then hand over; False once closed."""
        changed = self._worker.changed
        with changed:
            while self._wanted() and len(self._buffers) >= UNREAD and not self._worker.contended:
                changed.wait()
            if self._wanted():
                self._buffers.append(buffer)
        self._wake()
        return self._wanted()

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._arrived.set)
        except RuntimeError:  # the loop was closed: nobody listens any more
            self._stop()
