"""Play-out: writes speech to a sink at the pace of a clock, and knows to the sample what was played."""

from __future__ import annotations

import asyncio
import inspect
import struct
import wave
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO, Protocol, TypeAlias, cast

import anyio
import anyio.lowlevel

from specstream.checks import check_numbers
from specstream.errors import AdapterFailed, ConfigError, OutputError, SpecstreamError
from specstream.signals import Clock, LoopClock, Signal, finished
from specstream.stages.contract import as_failure, close_part
from specstream.types import Speech

__all__ = ["AudioSink", "AudioWriter", "Playback", "Playout", "WaveSink", "sink_of"]

AudioWriter: TypeAlias = Callable[[bytes, int], Awaitable[None] | None]
"""``writer(pcm, sample_rate)``: takes signed 16-bit little-endian mono."""


class AudioSink(Protocol):
    """A sound device, a connection, a file. One turn at a time writes to it."""

    async def write(self, pcm: bytes, sample_rate: int) -> None:
        """Take the next audio (signed 16-bit little-endian mono, at most 40 ms).

        It may wait, as long as it likes: play-out waits with it. Cancelled when play-out stops.
        """

    def clear(self) -> None:
        """Discard what was written and can't be heard yet. Returns at once."""

    async def aclose(self) -> None:
        """Release what the sink holds; idempotent."""


class _FunctionSink:
    """See `sink_of`."""

    def __init__(self, function: AudioWriter) -> None:
        self._function = function

    async def write(self, pcm: bytes, sample_rate: int) -> None:
        await _done(self._function(pcm, sample_rate))

    def clear(self) -> None:
        return None

    async def aclose(self) -> None:
        return None


async def _done(result: object) -> None:
    """Wait for what a sink's function gives, if it can be waited for."""
    if inspect.isawaitable(result):
        await result


def sink_of(given: AudioSink | AudioWriter | None) -> AudioSink:
    """Return the sink itself, a function as a sink, or (None) a sink that discards.

    Raises:
        ConfigError: it is none of these.
    """
    if given is None:
        return _FunctionSink(lambda pcm, sample_rate: None)
    if inspect.iscoroutinefunction(getattr(given, "clear", None)):
        raise ConfigError(f"clear of {given!r:.80} must be a plain function: nothing can wait for it")
    if all(hasattr(given, name) for name in ("write", "clear", "aclose")):
        return cast(AudioSink, given)
    if not callable(given):
        raise ConfigError(
            f"{given!r} is no audio sink: it needs write, clear and aclose, or give a function "
            "(pcm, sample_rate)"
        )
    return _FunctionSink(given)


class WaveSink:
    """Writes a WAV file, turn after turn; valid after every write, even if the process is killed."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._file: wave.Wave_write | None = None
        self._raw: BinaryIO | None = None

    async def write(self, pcm: bytes, sample_rate: int) -> None:
        """Append audio.

        Raises:
            OutputError: the file can't be written.
            AdapterFailed: the sample rate differs from that of the audio before.
        """
        self._append(pcm, sample_rate)

    def _append(self, pcm: bytes, sample_rate: int) -> None:
        if self._file is not None and self._file.getframerate() != sample_rate:
            raise AdapterFailed(f"{self._path} can't change to {sample_rate} Hz half-way")
        try:
            if self._file is None:
                self._raw = open(self._path, "wb")  # here: `wave.open` warns where this fails
                self._file = wave.open(self._raw, "wb")
                self._file.setparams((1, 2, sample_rate, 0, "NONE", "not compressed"))
            assert self._raw is not None
            if self._raw.seekable():
                self._file.writeframes(pcm)  # updates the header, after the audio
            else:
                self._file.writeframesraw(pcm)
            self._raw.flush()
        except struct.error:  # from the header
            raise OutputError(f"{self._path} is full: a WAV file holds at most 4 GiB") from None
        except OSError as error:
            raise OutputError(f"can't write {self._path}: {error}") from error

    def clear(self) -> None:
        """What was written stays in the file."""

    async def aclose(self) -> None:
        """Complete the file; idempotent.

        Raises:
            OutputError: the file can't be written.
        """
        file, self._file = self._file, None
        raw, self._raw = self._raw, None
        try:
            try:
                if file is not None:
                    file.close()
            finally:
                if raw is not None:
                    raw.close()
        except struct.error:
            pass  # the file is full, as `write` has said
        except OSError as error:
            raise OutputError(f"can't write {self._path}: {error}") from error


_PIECE_S = 0.04  # the longest audio of one write: a stop takes effect within it
_SINK = "the audio sink"
_ROUNDING = 1e-6  # samples; tolerates the rounding of the clock's floating-point time


class Playout:
    """Plays one turn after another through one sink.

    Args:
        sink: An `AudioSink`, or a function ``writer(pcm, sample_rate)`` that may return an awaitable;
            None plays silently, which still paces the turn.
        lead_s: How far audio is written ahead of the moment when it is heard: the sink's own buffer.
        ahead_s: Seconds of speech that may wait to be written; then the voice and the decoding wait.
        paced: False writes speech as soon as it is made (a file); all that was written counts as played.
        audible: False: no microphone hears it (headphones, a test), so there are no echoes.
        clock: Paces the play-out; the event loop's clock unless a test brings another.

    Raises:
        ConfigError: a duration is out of range.
    """

    def __init__(
        self,
        sink: AudioSink | AudioWriter | None = None,
        *,
        lead_s: float = 0.08,
        ahead_s: float = 30.0,
        paced: bool = True,
        audible: bool = True,
        clock: Clock | None = None,
    ) -> None:
        check_numbers(0, lead_s=lead_s, ahead_s=ahead_s)
        self.sink = sink_of(sink)
        self.lead_s, self.ahead_s, self.paced = lead_s, ahead_s, paced
        self.audible = audible and paced and sink is not None
        self.clock = clock or LoopClock()
        self.told: Callable[[bytes, int, float], object] | None = None
        """Called with all audio that is played, its rate, and the clock's time of its first sample."""
        self._busy = False

    @asynccontextmanager
    async def play(self) -> AsyncGenerator[Playback, None]:
        """Begin a turn, on a sample clock that starts at 0. Leaving the block stops it at once.

        Raises:
            ConfigError: another turn is being played.
        """
        if self._busy:
            raise ConfigError("this play-out plays another turn; end that, or make one more")
        self._busy = True
        playback = Playback(self)
        task = asyncio.create_task(playback._run())
        try:
            yield playback
        finally:
            playback.stop()
            try:
                await finished(asyncio.wait([task]))
            finally:
                self._busy = False

    async def aclose(self) -> None:
        """Close the sink; idempotent. A cancel is raised after that.

        Raises:
            SpecstreamError: the sink can't be closed, or not within ten seconds.
        """
        await close_part(_SINK, self.sink)


class Playback:
    """The play-out of one turn.

    Attributes:
        rate: Samples a second; None before the first speech.
        end: Samples of speech that were put in.
        written: Samples that the sink has taken.
        paused: Whether nothing is written at present.
        stopped: Whether nothing will be written any more.
        failure: What broke the sink; play-out stops there.
    """

    def __init__(self, playout: Playout) -> None:
        self.rate: int | None = None
        self.end = self.written = 0
        self.paused = self.stopped = False
        self.failure: SpecstreamError | None = None
        self._playout = playout
        self._clock = playout.clock
        self._pieces: deque[bytes] = deque()
        self._taken = 0  # samples that the sink has, or is taking
        self._since = 0.0  # when sample `_from` was, or will be, heard
        self._from = 0
        self._played = 0  # samples that were heard when it stopped
        self._finished = False
        self._drained = anyio.Event()
        self._changed = Signal()
        self._scope = anyio.CancelScope()

    @property
    def played(self) -> int:
        """Samples that were heard so far."""
        if self.stopped:
            return self._played
        if not self._playout.paced or self.rate is None:
            return self.written
        heard = self._from + int((self._clock.now() - self._since) * self.rate + _ROUNDING)
        return max(0, min(self.written, heard))

    @property
    def played_ms(self) -> float:
        """Milliseconds that were heard so far."""
        return self.played * 1e3 / self.rate if self.rate else 0.0

    @property
    def over(self) -> bool:
        """Whether everything that was put in was heard and nothing will follow, or it has stopped."""
        return self.stopped or self._drained.is_set()

    async def room(self) -> None:
        """Wait until speech may be put in, or is no longer wanted. Cancelling it changes nothing."""
        while not self.stopped and self.rate is not None:
            if self.end - self.written <= self._playout.ahead_s * self.rate:
                return
            await self._changed.wait()

    def put(self, speech: Speech) -> None:
        """Take the next speech; ignored once play-out has stopped.

        Speech that begins before the end of the last one replaces what was not written yet.

        Raises:
            AdapterFailed: it leaves a gap, replaces audio that has left, or has another sample rate.
        """
        if self.stopped:
            return
        self.rate = self.rate or speech.sample_rate
        start = speech.samples.start
        if speech.sample_rate != self.rate or not self._taken <= start <= self.end:
            raise AdapterFailed(
                f"the voice gave sample {start} at {speech.sample_rate} Hz where {self.end} at "
                f"{self.rate} Hz was due and {self._taken} have left"
            )
        if start < self.end:
            kept = b"".join(self._pieces)[: 2 * (start - self._taken)]
            self._pieces = deque([kept] if kept else [])
        if speech.pcm:
            self._pieces.append(speech.pcm)
        self.end = start + len(speech.pcm) // 2
        self._changed.notify()

    def finish(self) -> None:
        """No more speech will be put in. Idempotent."""
        self._finished = True
        self._changed.notify()

    async def drained(self) -> None:
        """Wait until all of it was heard (after `finish`), or play-out has stopped."""
        await self._drained.wait()

    def pause(self) -> None:
        """Write no more for now; what the sink has (``lead_s``) is still heard. Idempotent."""
        self.paused = True

    def resume(self) -> None:
        """Go on with the next sample. Idempotent."""
        self.paused = False
        self._changed.notify()

    def stop(self) -> int:
        """Write nothing any more and clear the sink; returns the samples that were heard. Idempotent."""
        if not self.stopped:
            self._played = self.played
            self.stopped = True
            self._pieces.clear()
            self._scope.cancel()
            try:
                if self._taken > self._played:
                    self._playout.sink.clear()
            except BaseException as error:
                self.failure = self.failure or as_failure(_SINK, error)
                if isinstance(error, KeyboardInterrupt | SystemExit):
                    raise
            finally:
                self._drained.set()
                self._changed.notify()
        return self._played

    async def _run(self) -> None:
        with self._scope:
            try:
                await self._write_all()
                if self._playout.paced and self.rate is not None:
                    left = (self.written - self._from) / self.rate
                    await self._clock.sleep_until(self._since + left)
                self._drained.set()
            except BaseException as error:  # a test's failure and a panic are no Exceptions
                task = asyncio.current_task()
                if self._scope.cancel_called or (task is not None and task.cancelling()):
                    raise
                # Not a cancel of the play-out: a sink may wait for something that was cancelled.
                self.failure = as_failure(_SINK, error)
                self.stop()
                if isinstance(error, KeyboardInterrupt | SystemExit):
                    raise

    async def _write_all(self) -> None:
        while True:
            await anyio.lowlevel.checkpoint()  # a sink's `write` may return without waiting
            if self.paused or not self._pieces:
                if self._finished and not self._pieces:
                    return
                await self._changed.wait()
                continue
            assert self.rate is not None
            if self._playout.paced and self.played < self.written:
                size = min(len(self._pieces[0]) // 2, self._largest)
                due = self._since + (self.written + size - self._from) / self.rate
                leaves = due - max(self._playout.lead_s, size / self.rate)
                if leaves > self._clock.now():
                    await self._clock.sleep_until(leaves)
                    continue  # it may have been paused, or the piece replaced
            await self._write()

    @property
    def _largest(self) -> int:
        assert self.rate is not None
        return max(1, int(_PIECE_S * self.rate))

    async def _write(self) -> None:
        assert self.rate is not None
        piece = self._pieces.popleft()
        size = 2 * self._largest
        if len(piece) > size:
            self._pieces.appendleft(piece[size:])
            piece = piece[:size]
        self._taken += len(piece) // 2
        await _done(self._playout.sink.write(piece, self.rate))
        if self.played >= self.written:  # the sink has run dry, or this is the first audio
            self._since, self._from = self._clock.now(), self.written
        if self._playout.told is not None:
            at = self._since + (self.written - self._from) / self.rate
            self._playout.told(piece, self.rate, at)
        self.written += len(piece) // 2
        self._changed.notify()
