"""Latencies of a response: to its first text, first audio and first audible sample."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from specstream.realtime.wire import SAMPLE_RATE
from specstream.server.counters import Counters
from specstream.types import Chunk

__all__ = ["FirstAudible", "Timings", "audible"]

_AUDIBLE = 328  # 1 % of full scale (-40 dBFS)


def audible(pcm: bytes) -> NDArray[np.int64]:
    """The indices of the samples that are heard: those of at least 1 % of full scale."""
    samples = np.frombuffer(pcm, dtype="<i2").astype(np.int32)
    return np.flatnonzero(np.abs(samples) >= _AUDIBLE)


class FirstAudible:
    """Time to the first audible sample, if play-out begins with the first piece of audio.

    Attributes:
        first_ms: When the first piece came, on the clock of ``now_ms``.
        ttfa_ms: When the first sample of at least 1 % of full scale can be heard: the arrival of
            its piece, or the end of what plays before it if that is later.
    """

    def __init__(self) -> None:
        self.first_ms: float | None = None
        self.ttfa_ms: float | None = None

    def add(self, start: int, rate: int, pcm: bytes, now_ms: float) -> bool:
        """Take PCM that begins at sample ``start``; True if the first audible sample is in it."""
        if self.ttfa_ms is not None or not pcm:
            return False
        if self.first_ms is None:
            self.first_ms = now_ms
        loud = audible(pcm)
        if not loud.size:
            return False
        self.ttfa_ms = max(self.first_ms + (start + int(loud[0])) / rate * 1e3, now_ms)
        return True


class Timings:
    """Measures a response's first results, in ms since its start, and feeds the server's counters."""

    def __init__(self, t_ms: Callable[[], float], counters: Counters) -> None:
        self._t_ms = t_ms
        self.begin()
        self._counters = counters
        self._chunk_ms: float | None = None
        self._first_text_ms: float | None = None
        self._audible = FirstAudible()
        self._first: dict[str, float] = {}
        self._told = False

    def begin(self) -> None:
        """Count from now on, not from when this was made: the response begins for its client."""
        self._begun_ms = self._t_ms()

    def first(self, what: str) -> None:
        """Note that ``what`` was made, if it is the first of its kind."""
        if (name := f"{what}_ms") not in self._first:
            self._first[name] = self._t_ms()

    def take_firsts(self) -> dict[str, float] | None:
        """Return, once, when the first of each kind was made, on the session's clock."""
        told, self._told = self._told, True
        return None if told else dict(self._first)

    def _now(self) -> float:
        return self._t_ms() - self._begun_ms

    def chunk(self, chunk: Chunk) -> None:
        """Note a chunk that came from the engine."""
        if chunk.tokens.length:
            self.first("token")
            now, before = self._now(), self._chunk_ms
            gap_s = None if before is None else (now - before) / 1e3
            self._counters.count_chunk(chunk, now / 1e3, gap_s)
            self._chunk_ms = now

    def text(self) -> None:
        """Note that text is about to be sent."""
        if self._first_text_ms is None:
            self._first_text_ms = self._now()

    def audio(self, start: int, pcm: bytes) -> None:
        """Note sent audio that begins at sample ``start`` (24 kHz)."""
        self._counters.audio_samples += len(pcm) // 2
        heard = self._audible
        if heard.ttfa_ms is None and heard.add(start, SAMPLE_RATE, pcm, self._now()):
            assert heard.ttfa_ms is not None
            self._counters.first_audio.observe(heard.ttfa_ms / 1e3)

    def to_dict(self) -> dict[str, float]:
        """Return the figures for the report, without those of results that never came."""
        figures = {
            "first_text_ms": self._first_text_ms,
            "first_audio_ms": self._audible.first_ms,
            "ttfa_ms": self._audible.ttfa_ms,
        }
        return {name: round(ms, 3) for name, ms in figures.items() if ms is not None}
