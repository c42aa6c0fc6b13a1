"""Audio on its way out: to the wire's sample rate, exactly counted, and no faster than it plays."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, gcd
from typing import Protocol

import anyio
import anyio.lowlevel
import numpy as np
import numpy.typing as npt

from specstream.errors import AdapterFailed
from specstream.types import Span, Speech
from specstream.ws.realtime.resources import Word
from specstream.ws.realtime.wire import SAMPLE_RATE

__all__ = ["AudioPacer", "Clock", "Piece", "Resampler", "SystemClock", "first_audible"]

_ZEROS = 32
_BETA = 8.0
_ROLLOFF = 0.92
"""Kaiser window over 32 zero crossings a side: the stop band (-80 dB) begins at Nyquist."""
_MAX_TAPS = 1 << 17  # a kernel of so many takes milliseconds; every usual rate needs far fewer
_PIECE = SAMPLE_RATE // 10
_SLICE = SAMPLE_RATE // 2  # bytes of speech that are converted before the loop turns again


class Clock(Protocol):
    """What paces the audio; tests bring their own."""

    def now(self) -> float:
        """Seconds, monotonic."""
        ...

    async def sleep_until(self, moment: float) -> None:
        """Return once ``now() >= moment``."""
        ...


class SystemClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """See `Clock`."""
        return time.monotonic()

    async def sleep_until(self, moment: float) -> None:
        """See `Clock`."""
        await anyio.sleep(max(0.0, moment - time.monotonic()))


@lru_cache(maxsize=4)
def _kernel(up: int, down: int) -> npt.NDArray[np.float32]:
    """One row of taps for each of the ``up`` places between two inputs."""
    cutoff = _ROLLOFF * min(1.0, up / down)
    half = ceil(_ZEROS / cutoff)
    at = np.arange(-half + 1, half + 1)[None, :] - (np.arange(up) / up)[:, None]
    grid = np.linspace(-1.0, 1.0, 4097)
    window = np.interp(at / half, grid, np.kaiser(4097, _BETA), left=0.0, right=0.0)
    taps = np.sinc(at * cutoff) * window
    rows: npt.NDArray[np.float32] = (taps / taps.sum(axis=1, keepdims=True)).astype(np.float32)
    return rows


class Resampler:
    """Streaming windowed-sinc rate conversion of s16 mono, polyphase (Crochiere & Rabiner 1983).

    Linear phase with no net delay: output sample ``n`` stands at time ``n / target`` of the input.
    The output does not depend on how the input is cut, and has ``ceil(inputs * target / source)``
    samples once it is flushed.

    Raises:
        AdapterFailed: ``source`` has so little in common with ``target`` that it takes too many taps.
    """

    def __init__(self, source: int, target: int = SAMPLE_RATE) -> None:
        common = gcd(source, target)
        self._up, self._down = target // common, source // common
        self._same = source == target
        if 2 * ceil(_ZEROS / (_ROLLOFF * min(1.0, target / source))) * self._up > _MAX_TAPS:
            raise AdapterFailed(
                f"speech at {source} Hz can't be converted to {target} Hz;"
                " use a usual rate such as 16000, 22050, 24000, 44100 or 48000"
            )
        self._kernel = _kernel(self._up, self._down)
        self._half = self._kernel.shape[1] // 2
        self._held = np.zeros(self._half - 1, dtype=np.float32)
        self._held_from = -(self._half - 1)
        self._taken = 0
        self._made = 0

    def push(self, pcm: bytes) -> bytes:
        """Take the next input; return the output that it completes."""
        if self._same:
            return pcm
        samples = np.frombuffer(pcm, dtype="<i2").astype(np.float32)
        self._taken += len(samples)
        return self._make(samples, self._taken - 1 - self._half)

    def flush(self) -> bytes:
        """The input has ended: return the rest. The resampler is used up."""
        if self._same:
            return b""
        return self._make(np.zeros(self._half, dtype=np.float32), self._taken - 1)

    def _make(self, samples: npt.NDArray[np.float32], last: int) -> bytes:
        """Every output that stands at or before input ``last``."""
        held = np.concatenate([self._held, samples])
        until = max(self._made, -(-(last + 1) * self._up // self._down))
        places = np.arange(self._made, until, dtype=np.int64) * self._down
        base, phase = places // self._up, places % self._up
        first = base - self._half + 1 - self._held_from
        windows = held[first[:, None] + np.arange(2 * self._half)[None, :]]
        out = np.einsum("nk,nk->n", windows, self._kernel[phase])
        self._made = until
        keep = max(0, until * self._down // self._up - self._half + 1 - self._held_from)
        self._held, self._held_from = held[keep:], self._held_from + keep
        pcm: bytes = np.clip(np.rint(out), -32768, 32767).astype("<i2").tobytes()
        return pcm


@dataclass(frozen=True, slots=True)
class Piece:
    """A little of the turn's audio, ready for the wire; ranges as in `Extra`."""

    pcm: bytes
    samples: Span
    chars: Span
    tokens: Span
    words: tuple[Word, ...] = ()


class AudioPacer:
    """Between a voice and the wire: resamples, keeps the sample clock, and paces by the play-out.

    At most ``lead_s`` seconds leave ahead of what a listener can have heard, if playing began with
    the first piece and stopped whenever nothing was left to play. At most ``buffer_s`` more are
    held; then `put` waits, and with it whatever makes the audio.
    """

    def __init__(self, clock: Clock, *, lead_s: float, buffer_s: float) -> None:
        self._rate = SAMPLE_RATE
        self._resampler: Resampler | None = None
        self._clock = clock
        self._lead_s = lead_s
        self._room = int(buffer_s * SAMPLE_RATE)
        self._playing_since = float("-inf")  # when playing began, or went on after a gap
        self._to_play = 0  # samples sent since then
        self._taken = 0
        self._made = 0
        self._sources: deque[tuple[int, Speech]] = deque()
        self._words: list[Word] = []
        self._ready: deque[Piece] = deque()
        self._ready_samples = 0
        self._ended = False
        self._changed = anyio.Event()

    def at_24k(self, samples: Span) -> Span:
        """A range of the voice's samples on the wire's clock."""
        return Span(*(-(-sample * SAMPLE_RATE // self._rate) for sample in samples))

    async def put(self, speech: Speech) -> list[Word]:
        """Take the next speech; returns its words on the wire's clock.

        Raises:
            AdapterFailed: the speech does not begin where the last one ended, or has an odd rate.
        """
        if self._resampler is None:
            self._rate = speech.sample_rate
            self._resampler = Resampler(self._rate)
        if (speech.samples.start, speech.sample_rate) != (self._taken, self._rate):
            raise AdapterFailed(
                f"the voice gave sample {speech.samples.start} at {speech.sample_rate} Hz"
                f" where {self._taken} at {self._rate} Hz was due"
            )
        self._taken = speech.samples.end
        words = [
            Word(text=mark.text, samples=self.at_24k(mark.samples), chars=mark.chars)
            for mark in speech.marks
            if mark.kind == "word"
        ]
        if speech.pcm:
            if self._sources and self._sources[-1][1].phrase == speech.phrase:
                self._sources.pop()
            self._sources.append((self.at_24k(speech.samples).end, speech))
            for at in range(0, len(speech.pcm), _SLICE):
                if at:
                    await anyio.lowlevel.checkpoint()
                self._enter(self._resampler.push(speech.pcm[at : at + _SLICE]))
        self._attach(words)
        while self._ready_samples > self._room and not self._ended:
            await self._changed.wait()
        return words

    def _attach(self, words: list[Word]) -> None:
        """A word goes out with the newest audio that has not left yet, or with the next."""
        self._words += words
        if self._ready:
            self._ready[-1] = replace(self._ready[-1], words=self._ready[-1].words + self.unsent())

    def unsent(self) -> tuple[Word, ...]:
        """Take the words that no piece carried."""
        words, self._words = tuple(self._words), []
        return words

    def close(self) -> None:
        """The speech has ended; what is held still goes out. Idempotent."""
        if not self._ended:
            if self._resampler is not None:
                self._enter(self._resampler.flush())
            self._end()

    def drop(self) -> None:
        """Throw away what is held; nothing more goes out. Idempotent."""
        self._ready.clear()
        self._end()

    def _end(self) -> None:
        self._ended = True
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _enter(self, pcm: bytes) -> None:
        """Cut new output where one phrase ends, so that every piece has one origin."""
        if self._ended:
            return
        at = 0
        while at < len(pcm):
            end, source = self._sources[0]
            count = min(len(pcm) - at, 2 * min(end - self._made, _PIECE))
            if count > 0:
                samples = Span(self._made, self._made + count // 2)
                words = self.unsent()
                piece = Piece(pcm[at : at + count], samples, source.chars, source.tokens, words)
                self._ready.append(piece)
                self._ready_samples += samples.length
                self._made, at = samples.end, at + count
            if self._made >= end and len(self._sources) > 1:
                self._sources.popleft()
        self._notify()

    async def take(self) -> Piece | None:
        """The next piece, as soon as it may leave; None after `close` or `drop`.

        Cancelling the call takes nothing.
        """
        while True:
            while not self._ready:
                if self._ended:
                    return None
                await self._changed.wait()
            leaves = self._played_out(self._ready[0].samples.length) - self._lead_s
            if leaves <= self._clock.now():
                break
            await self._clock.sleep_until(leaves)  # what was first may be gone after that
        piece = self._ready.popleft()
        self._ready_samples -= piece.samples.length
        if self._played_out() < self._clock.now():
            self._playing_since, self._to_play = self._clock.now(), 0
        self._to_play += piece.samples.length
        self._notify()
        return piece

    def _played_out(self, more: int = 0) -> float:
        """When everything that was sent, and ``more`` samples, will have been played."""
        return self._playing_since + (self._to_play + more) / SAMPLE_RATE


def first_audible(pcm: bytes) -> int | None:
    """The first sample of at least 1 % of full scale (-40 dBFS)."""
    loud = np.flatnonzero(np.abs(np.frombuffer(pcm, dtype="<i2").astype(np.int32)) >= 328)
    return int(loud[0]) if loud.size else None
