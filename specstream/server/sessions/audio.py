"""Audio on its way to the wire: encodings, sample rate, sample offsets and pacing."""

from __future__ import annotations

import io
import math
from collections import deque
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import anyio
import anyio.lowlevel
import numpy as np
import numpy.typing as npt

from specstream.errors import AdapterFailed, SpecstreamError
from specstream.listening.resampler import Resampler
from specstream.realtime.resources import Word
from specstream.realtime.wire import SAMPLE_RATE
from specstream.signals import Clock, Signal
from specstream.types import AvatarCue, Span, Speech

__all__ = ["AudioPacer", "Encoder", "Format", "Piece", "coded", "decoded", "of_cue", "sample_rate"]

Format = Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
_SUBTYPES = {"audio/pcmu": "ULAW", "audio/pcma": "ALAW"}  # libsndfile's names
_G711_RATE = 8000


def sample_rate(format: Format) -> int:
    """Return the samples per second of audio in this format."""
    return SAMPLE_RATE if format == "audio/pcm" else _G711_RATE


@lru_cache(maxsize=2)
def _tables(format: Format) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Libsndfile's code for every 16-bit sample (indexed by its bits), and its sample for every code."""
    import soundfile

    raw: dict[str, Any] = {"format": "RAW", "subtype": _SUBTYPES[format]}
    codes = io.BytesIO()
    soundfile.write(codes, np.arange(65536).astype(np.uint16).view(np.int16), _G711_RATE, **raw)
    every = io.BytesIO(bytes(range(256)))
    samples, _ = soundfile.read(every, dtype="int16", channels=1, samplerate=_G711_RATE, **raw)
    return np.frombuffer(codes.getvalue(), np.uint8), samples.astype("<i2")


def decoded(data: bytes, format: Format) -> bytes:
    """Decode ``data`` to s16 little-endian PCM of the same rate."""
    if format == "audio/pcm":
        return data
    pcm: bytes = _tables(format)[1][np.frombuffer(data, np.uint8)].tobytes()
    return pcm


def coded(pcm: bytes, format: Format) -> bytes:
    """Encode s16 little-endian PCM as ``format``, at the same rate."""
    if format == "audio/pcm":
        return pcm
    codes: bytes = _tables(format)[0][np.frombuffer(pcm, "<u2")].tobytes()
    return codes


class Encoder:
    """Converts s16 PCM at 24 kHz to a format of the wire, piece by piece."""

    def __init__(self, format: Format) -> None:
        self._format = format
        self._resampler = Resampler(SAMPLE_RATE, sample_rate(format))

    def push(self, pcm: bytes) -> bytes:
        """Take the next PCM; return the encoded audio that it completes."""
        return coded(self._resampler.push(pcm), self._format)

    def flush(self) -> bytes:
        """The audio has ended: return the rest (a few milliseconds, nothing for PCM)."""
        return coded(self._resampler.flush(), self._format)


_PIECE = SAMPLE_RATE // 10  # samples in the largest audio event
SLICE = SAMPLE_RATE // 2
"""Bytes of speech that are converted before other tasks may run."""
_ROUNDING = 1e-3  # samples: a float error above a whole sample must not round up to the next one


@dataclass(frozen=True, slots=True)
class Piece:
    """The audio of one event; ranges as in `Extra`."""

    pcm: bytes
    samples: Span
    chars: Span
    tokens: Span
    words: tuple[Word, ...] = ()


def of_cue(cue: AvatarCue) -> Span:
    """Compute a cue's samples on the wire's clock from its times.

    The voice's rate may be unknown: cues are sent before the speech that they belong to.
    """
    ends = (cue.t_ms, cue.t_ms + cue.duration_ms)
    return Span(*(math.ceil(ms * SAMPLE_RATE / 1000 - _ROUNDING) for ms in ends))


class AudioPacer:
    """The `specstream.playback.turn.Output` of a socket: releases audio at the pace of play-out.

    It resamples a voice's speech and keeps the wire's sample clock. At most ``lead_s`` seconds are
    released ahead of what a listener can have heard, if play-out began with the first piece and stopped
    whenever nothing was left to play. At most ``buffer_s`` more seconds are held; then `room` waits,
    which holds back the voice.

    The voice's samples count from 0; on the wire they follow the first ``since``, which an earlier
    process has sent.

    Attributes:
        failure: Always None: what the socket can't take ends the session.
        refused: Whether speech was put in that could not be taken.
    """

    failure: SpecstreamError | None = None

    def __init__(self, clock: Clock, *, lead_s: float, buffer_s: float, since: int = 0) -> None:
        self._clock = clock
        self._since = since
        self._lead_s = lead_s
        self._room = int(buffer_s * SAMPLE_RATE)
        self._rate = SAMPLE_RATE
        self._resampler: Resampler | None = None
        self._playing_since = float("-inf")  # when play-out began, or went on after a gap
        self._to_play = 0  # samples sent since then
        self._taken = 0  # samples taken, at the voice's rate
        self._made = since  # samples made, at the wire's rate
        self.refused = False
        self._given: deque[Speech] = deque()  # not converted yet
        self._given_samples = 0
        self._sources: deque[tuple[int, Speech]] = deque()  # a phrase's end on the wire, its speech
        self._words: list[Word] = []
        self._ready: deque[Piece] = deque()
        self._ready_samples = 0
        self._heard_s: float | None = None  # once it was stopped
        self._finished = False  # whether all speech was put in
        self._ended = False  # whether no more will be made of it
        self._drained = anyio.Event()
        self._sleep = anyio.CancelScope()
        self._changed = Signal()

    def at_24k(self, samples: Span) -> Span:
        """Convert a range of the voice's samples to the wire's clock, rounding up."""
        return Span(*(self._since - (-sample * SAMPLE_RATE // self._rate) for sample in samples))

    def words(self, speech: Speech) -> tuple[Word, ...]:
        """Return the words of speech that was put in, on the wire's clock."""
        return tuple(
            Word(text=mark.text, samples=self.at_24k(mark.samples), chars=mark.chars)
            for mark in speech.marks
            if mark.kind == "word"
        )

    async def room(self) -> None:
        """Wait until speech may be put in, or is no longer wanted. Cancelling it changes nothing."""
        while self._held > self._room and not self._ended:
            await self._changed.wait()

    @property
    def _held(self) -> int:
        return self._ready_samples + self._given_samples * SAMPLE_RATE // self._rate

    def put(self, speech: Speech) -> None:
        """Take the next speech; `take` converts it. Ignored once it was stopped.

        Raises:
            AdapterFailed: the speech does not begin where the last one ended, or its rate differs from
                the last one's or can't be converted.
        """
        if self._ended:
            return
        try:
            if self._resampler is None:
                self._rate = speech.sample_rate
                self._resampler = Resampler(self._rate, SAMPLE_RATE)
            if (speech.samples.start, speech.sample_rate) != (self._taken, self._rate):
                raise AdapterFailed(
                    f"the voice gave sample {speech.samples.start} at {speech.sample_rate} Hz"
                    f" where {self._taken} at {self._rate} Hz was due"
                )
        except AdapterFailed:
            self.refused = True
            raise
        self._taken = speech.samples.end
        self._given.append(speech)
        self._given_samples += speech.samples.length
        self._changed.notify()

    async def _convert(self) -> None:
        """Convert the oldest speech that was put in, slice by slice, so that other tasks may run."""
        assert self._resampler is not None
        speech = self._given[0]
        if speech.pcm:
            if self._sources and self._sources[-1][1].phrase == speech.phrase:
                self._sources.pop()
            self._sources.append((self.at_24k(speech.samples).end, speech))
            for at in range(0, len(speech.pcm), SLICE):
                if at:
                    await anyio.lowlevel.checkpoint()
                self._enter(self._resampler.push(speech.pcm[at : at + SLICE]))
        if self._ended:  # stopped meanwhile
            return
        self._given.popleft()
        self._given_samples -= speech.samples.length
        self._words += self.words(speech)
        if self._ready:  # words go with the newest piece that is still held, or with the next one
            newest = self._ready[-1]
            self._ready[-1] = replace(newest, words=newest.words + self.unsent())

    def unsent(self) -> tuple[Word, ...]:
        """Remove and return the words that no piece has carried yet."""
        words, self._words = tuple(self._words), []
        return words

    def finish(self) -> None:
        """End the speech; the audio that is held is still released. Idempotent."""
        self._finished = True
        self._changed.notify()

    async def drained(self) -> None:
        """Wait until all of it was released (after `finish`), or it was stopped."""
        await self._drained.wait()

    @property
    def over(self) -> bool:
        """Whether everything that was put in was released and nothing will follow."""
        return self._drained.is_set()

    def stop(self) -> int:
        """Discard the audio that is held; returns the samples that were heard. Idempotent."""
        if not self._ended:
            self._heard_s = self.heard_s
        self._given.clear()
        self._given_samples = 0
        self._ready.clear()
        self._ready_samples = 0
        self._ended = True
        self._drained.set()
        self._changed.notify()
        self._sleep.cancel()
        return self.played

    def pause(self) -> None:
        """A client pauses its own play-out: nothing is done here."""

    def resume(self) -> None:
        """See `pause`."""

    def _enter(self, pcm: bytes) -> None:
        """Cut new output where a phrase ends, so that every piece has one origin."""
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
        self._changed.notify()

    async def take(self) -> Piece | None:
        """Return the next piece once it may be sent; None after the last one (`finish`) or `stop`.

        One task calls it; cancelling that ends the play-out.
        """
        while True:
            if self._given and not self._ended:
                await self._convert()
            if not self._ready and not self._given and not self._ended and self._finished:
                if self._resampler is not None:
                    self._enter(self._resampler.flush())
                self._ended = True
            if not self._ready:
                if self._ended:
                    self._drained.set()
                    return None
                if not self._given:
                    await self._changed.wait()
                continue
            leaves = self._played_out(self._ready[0].samples.length) - self._lead_s
            if leaves <= self._clock.now():
                break
            if not self._given:
                with anyio.CancelScope() as self._sleep:
                    await self._clock.sleep_until(leaves)
        piece = self._ready.popleft()
        self._ready_samples -= piece.samples.length
        if self._played_out() < self._clock.now():
            self._playing_since, self._to_play = self._clock.now(), 0
        self._to_play += piece.samples.length
        self._changed.notify()
        return piece

    @property
    def played(self) -> int:
        """Samples of the voice that a listener can have heard."""
        return int(self.heard_s * self._rate + _ROUNDING)

    @property
    def played_ms(self) -> float:
        """Milliseconds of the turn that a listener can have heard."""
        return self.heard_s * 1e3

    @property
    def since_ms(self) -> int:
        """Milliseconds on the wire before the turn's first sample."""
        return self._since * 1000 // SAMPLE_RATE

    @property
    def heard_s(self) -> float:
        """Seconds of the turn that a listener can have heard."""
        return self._playing_s() if self._heard_s is None else self._heard_s

    @property
    def playing_ms(self) -> float:
        """As `played_ms`, but goes on once all was sent; infinite when the last sample was played."""
        return self._playing_s() * 1e3 if self._played_out() > self._clock.now() else math.inf

    def _playing_s(self) -> float:
        sent = self._made - self._ready_samples - self._since
        return max(0.0, sent / SAMPLE_RATE - max(0.0, self._played_out() - self._clock.now()))

    def _played_out(self, more: int = 0) -> float:
        """Return when all the audio sent so far, and ``more`` samples, will have been played."""
        return self._playing_since + (self._to_play + more) / SAMPLE_RATE
