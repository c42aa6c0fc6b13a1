"""Joins a turn detector and a recogniser: audio in, turns and transcripts out."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from specstream.checks import sole_error
from specstream.errors import AdapterFailed, ConfigError, RequestError
from specstream.listening.ears import Ears, Recognition
from specstream.listening.endings import silence_factor
from specstream.listening.events import (
    ListenerEvent,
    ListenerSettings,
    ListeningFailed,
    TurnEnded,
    TurnHeard,
    TurnLost,
    TurnPartial,
    TurnPaused,
    TurnStarted,
)
from specstream.listening.interfaces import EndOfTurnDetector
from specstream.listening.resampler import Resampler, check_microphone_rate
from specstream.listening.turns import Closed, Heard, Opened, Paused, Step, TurnAudio, Turns
from specstream.signals import Signal, finished

__all__ = ["Ears", "Listener", "ListenerSettings"]

MAX_WAITING = 4
"""Turns that may wait for their transcript; then `Listener.add` waits."""
MAX_EVENTS = 256
"""Events that may wait for the consumer; then `Listener.add` waits."""
_JUDGED_S = 8.0  # of a turn's end that a detector may hear
_SLICE_S = 0.5  # audio that is processed before the listener may be cancelled

_log = logging.getLogger("specstream.ears")


class Listener:
    """Hears one stream of s16 mono audio. Enter it; iterate over it in one task, `add` in another.

    Every turn gives `TurnStarted`, any number of `TurnPartial` and `TurnPaused`, `TurnEnded`, and then
    `TurnHeard` or `TurnLost`. The next turn may begin before the last one's transcript is there.

    Args:
        ears: The recogniser and the turn detector.
        sample_rate: Samples a second of the audio; any usual rate.
        settings: How turns are cut and how often they are recognised.
        clean: Is given all audio, and returns what is to be heard of it, such as the user's voice alone.

    Raises:
        ConfigError: a wrong option, or the recogniser and the detector share no sample rate.
        AdapterFailed: audio of this rate can't be converted.
    """

    def __init__(
        self,
        ears: Ears,
        *,
        sample_rate: int,
        settings: ListenerSettings | None = None,
        clean: Callable[[bytes], bytes] | None = None,
    ) -> None:
        if not isinstance(settings, ListenerSettings | None):
            raise ConfigError(f"settings must be ListenerSettings(...), not {settings!r:.80}")
        check_microphone_rate(sample_rate)
        self.settings = settings or ListenerSettings()
        self._ears, self._clean = ears, clean
        self._rate = ears.sample_rate
        self._resampler = Resampler(sample_rate, self._rate)
        self._slice = 2 * int(sample_rate * _SLICE_S)
        self._detecting = threading.Lock()
        track = None
        if not self.settings.manual:
            track = ears.detector.open(self._rate, threshold=self.settings.threshold)
        self._turns = Turns(track, self._rate, self.settings)
        self._opened = self._pauses = self._ended = 0  # turns and pauses so far
        self._current: Recognition | None = None
        self._judges = self.settings.by_words and isinstance(ears.detector, EndOfTurnDetector)
        self._recent = bytearray()  # the open turn's last audio
        self._most_recent = int(2 * _JUDGED_S * self._rate)
        self._waiting: deque[Recognition] = deque()  # ended, without a transcript yet
        self._events: deque[ListenerEvent] = deque()
        self._changed = Signal()
        self._finished = self._deaf = False
        self._group: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        """Start the recognition task."""
        self._group = await anyio.create_task_group().__aenter__()
        self._group.start_soon(self._recognize)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Stop at once; turns without a transcript get none."""
        assert self._group is not None
        self.finish()
        self._group.cancel_scope.cancel()
        try:
            return await self._group.__aexit__(kind, error, trace)
        except BaseExceptionGroup as errors:
            if error is not None and errors.exceptions == (error,):
                return False
            cause = sole_error(errors)
            raise cause from cause.__cause__
        finally:
            for recognition in (*self._waiting, *filter(None, [self._current])):
                await finished(recognition.aclose())

    @property
    def now_ms(self) -> float:
        """The end of the audio so far, in milliseconds from its first sample."""
        return self._turns.now_ms

    @property
    def held_ms(self) -> float:
        """Milliseconds of the open turn's audio; 0 if there is none."""
        return self._turns.held_ms

    @property
    def waiting(self) -> int:
        """Turns that have ended and have no transcript yet."""
        return len(self._waiting)

    @property
    def deciding(self) -> bool:
        """Whether the speaker pauses and the transcript up to the pause isn't known yet."""
        return self._current is not None and self._current.deciding

    @property
    def ended(self) -> int:
        """Turns that have ended so far; each has, or will have, a transcript or an error."""
        return self._ended

    async def add(self, pcm: bytes) -> None:
        """Take the next audio: whole samples, any number.

        Waits while `MAX_WAITING` turns wait for their transcripts, or `MAX_EVENTS` events are
        unread. Cancelling the call loses what was not taken yet.

        Raises:
            RequestError: no bytes, or half a sample; in manual mode, more audio than ``max_turn_s``; or
                `finish`, or the end of the block, came while this waited.
        """
        if not isinstance(pcm, bytes | bytearray | memoryview):
            raise RequestError(
                f"audio is bytes of 16-bit samples, not {type(pcm).__name__}; arrays have tobytes()"
            )
        # The caller may fill its buffer anew meanwhile, and a view may count other items than bytes.
        pcm = bytes(pcm)
        if len(pcm) % 2:
            raise RequestError("audio is whole 16-bit samples: an even number of bytes")
        if self._clean is not None:
            pcm = self._clean(pcm)
        most = self.settings.max_turn_s
        if self.settings.manual and self.held_ms >= most * 1e3:
            raise RequestError(f"{most:g} s of audio are waiting; commit or clear them first")
        for at in range(0, len(pcm), self._slice):
            if at:
                await anyio.lowlevel.checkpoint()
            while len(self._waiting) >= MAX_WAITING or len(self._events) >= MAX_EVENTS:
                if self._finished:
                    raise RequestError("no more audio is taken: the end came before there was room")
                await self._changed.wait()
            if self._deaf or self._finished:
                return
            await self._take(pcm[at : at + self._slice])

    def commit(self) -> bool:
        """End the open turn now; returns whether there was one."""
        steps = self._turns.commit()
        self._follow(steps)
        return bool(steps)

    def clear(self) -> None:
        """Forget the open turn; it gets no more events."""
        self._turns.clear()
        current, self._current = self._current, None
        if current is not None:
            current.dropped = True
            self._waiting.append(current)  # `_recognize` closes its stream
        self._changed.notify()

    def finish(self) -> None:
        """End the open turn, and the iteration after its transcript: no more audio comes. Idempotent."""
        if not self._finished:
            if self._current is not None and not self._deaf:
                try:
                    self._follow(self._turns.add(self._detect(None)))
                except Exception as error:
                    self._go_deaf(error)
            self.commit()
            self._finished = True
            self._changed.notify()

    def __aiter__(self) -> AsyncIterator[ListenerEvent]:
        return self

    async def __anext__(self) -> ListenerEvent:
        while not self._events:
            if self._finished and not self._waiting and self._current is None:
                raise StopAsyncIteration
            await self._changed.wait()
        event = self._events.popleft()
        self._changed.notify()
        return event

    async def _take(self, pcm: bytes) -> None:
        """Follow the turns in the next audio, which is converted and heard in another thread."""
        try:
            loop = asyncio.get_running_loop()
            heard = await loop.run_in_executor(None, self._detect, pcm)
        except Exception as error:
            self._go_deaf(error)
        else:
            if not self._finished:
                self._follow(self._turns.add(heard))

    def _detect(self, pcm: bytes | None) -> list[Heard]:
        """Convert audio (None: the rest) to the recogniser's rate, and let the detector hear it."""
        with self._detecting:
            converted = self._resampler.flush() if pcm is None else self._resampler.push(pcm)
            return self._turns.detect(converted)

    def _follow(self, steps: list[Step]) -> None:
        for step in steps:
            match step:
                case Opened(at_ms, start_ms):
                    number, self._opened = self._opened, self._opened + 1
                    self._recent.clear()
                    self._current = Recognition(number, self._ears, self._rate, self.settings)
                    self._events.append(TurnStarted(number, at_ms, start_ms))
                case TurnAudio(pcm) if self._current is not None:
                    self._current.pause = None
                    self._current.add(pcm)
                    self._recent += pcm
                    del self._recent[: max(0, len(self._recent) - self._most_recent)]
                case Paused(quiet_ms) if self._current is not None:
                    self._pauses += 1
                    self._current.pause = self._pauses
                    if self._judges and self._group is not None:
                        # Another voice that goes on would sound as if the turn did.
                        quiet = min(2 * int(quiet_ms * self._rate / 1e3), len(self._recent))
                        said = bytes(self._recent[: len(self._recent) - quiet]) + bytes(quiet)
                        self._group.start_soon(self._judge, self._pauses, said)
                case Closed(start_ms, end_ms, level) if self._current is not None:
                    self._current.level = level
                    self._events.append(TurnEnded(self._current.turn, start_ms, end_ms))
                    self._ended += 1
                    self._waiting.append(self._current)
                    self._current = None
        self._changed.notify()

    def _go_deaf(self, error: Exception) -> None:
        """Report that the detector broke, and ignore further audio: it would break at every frame."""
        _log.error("the turn detector broke", exc_info=error)
        self.commit()
        self._deaf = True
        failure = error
        if not isinstance(failure, AdapterFailed):
            failure = AdapterFailed(f"the turn detector broke: {error}")
            failure.__cause__ = error
        self._events.append(ListeningFailed(failure))
        self._changed.notify()

    async def _judge(self, pause: int, pcm: bytes) -> None:
        """Ask whether a pause sounds like the turn's end; that may decide that it is over."""
        sound = await self._ears.ended(pcm)
        if sound is not None and self._current is not None and self._current.pause == pause:
            self._follow(self._turns.judged(sound))

    async def _recognize(self) -> None:
        """The only task that asks the recogniser, for one turn at a time."""
        while True:
            if self._waiting:
                await self._complete(self._waiting[0])
            elif self._current is not None and self._current.due():
                await self._look(self._current)
            else:
                await self._changed.wait()

    async def _complete(self, recognition: Recognition) -> None:
        event: ListenerEvent | None = None
        if not recognition.dropped:
            try:
                event = TurnHeard(recognition.turn, await recognition.finish())
            except AdapterFailed as error:
                event = TurnLost(recognition.turn, error)
        await recognition.aclose()
        self._waiting.popleft()
        if event is not None:
            self._events.append(event)
        words = isinstance(event, TurnHeard) and event.transcript.has_words
        self._turns.understood(recognition.level if words else None)
        self._changed.notify()

    def _stalled(self, recognition: Recognition) -> bool:
        """Whether the voices that are heard add nothing to what the user has said."""
        if not self.settings.by_words or self.settings.manual:
            return False
        factor = max(1.0, silence_factor(recognition.transcript, None, recognition.language) / 2)
        return recognition.stalled_s >= self.settings.stall_s * factor

    async def _look(self, recognition: Recognition) -> None:
        """Get a partial transcript; in a pause, its words may decide that the turn is over."""
        pause = recognition.pause
        changed = await recognition.look()
        if recognition is not self._current:
            return  # it has ended meanwhile; its transcript comes next
        if changed or recognition.again:
            partial = TurnPartial(recognition.turn, recognition.transcript, not changed)
            self._events.append(partial)
        if pause is not None and recognition.pause == pause:
            self._events.append(TurnPaused(recognition.turn, recognition.transcript))
            self._follow(self._turns.said(recognition.transcript, recognition.language))
        elif recognition.pause is None and self._stalled(recognition):
            self._follow(self._turns.commit(others=True))
        self._changed.notify()
