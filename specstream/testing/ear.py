"""The simulated listener: when audio arrives over a network, and when it is audible."""

from __future__ import annotations

import anyio

from specstream.signals import Signal
from specstream.testing.network import ScriptedNetwork
from specstream.ws.realtime.timings import FirstAudible

__all__ = ["Ear"]


class Ear:
    """An `AudioSink` that stands for the listener: audio is heard as soon as it has arrived.

    Times are seconds of the event loop's clock. ``begin`` starts the next reply.

    Args:
        network: The network between agent and listener; None: audio arrives when it is sent.

    Attributes:
        arrived: When the reply's first audio arrived.
        audible: When its first audible sample (at least 1 % of full scale) was heard.
        end: When the last sample that was heard ends.
        gap_ms: The longest silence inside the reply because audio came late.
        news: Notified when the first audible sample is known.
    """

    def __init__(self, network: ScriptedNetwork | None = None) -> None:
        self._network = network
        self.news = Signal()
        self.begin()

    def begin(self) -> None:
        """Start anew for the next reply."""
        self.arrived: float | None = None
        self.audible: float | None = None
        self.end = float("-inf")
        self.gap_ms = 0.0
        self._samples, self._rate = 0, 1
        self._first = FirstAudible()

    def take(self, pcm: bytes, sample_rate: int, at: float) -> None:
        """Record audio that arrives at ``at``."""
        self._rate = sample_rate
        if self.arrived is None:
            self.arrived = at
        elif at > self.end:
            self.gap_ms = max(self.gap_ms, (at - self.end) * 1e3)
        if self._first.add(self._samples, sample_rate, pcm, at * 1e3):
            assert self._first.ttfa_ms is not None
            self.audible = self._first.ttfa_ms / 1e3
            self.news.notify()
        self._samples += len(pcm) // 2
        self.end = max(self.end, at) + len(pcm) / 2 / sample_rate

    def cut(self, at: float) -> float:
        """Drop the audio that was not heard by ``at``; return the milliseconds that were heard."""
        heard = self._samples / self._rate - max(0.0, self.end - at)
        self.end = min(self.end, at)
        return max(0.0, heard) * 1e3

    def _arrival_of_audio_sent_now(self) -> float:
        now = anyio.current_time()
        return now if self._network is None else self._network.arrival(now)

    async def write(self, pcm: bytes, sample_rate: int) -> None:
        """See `AudioSink`; the audio is sent now."""
        self.take(pcm, sample_rate, self._arrival_of_audio_sent_now())

    def clear(self) -> None:
        """See `AudioSink`; the request to drop unheard audio is sent now."""
        self.cut(self._arrival_of_audio_sent_now())

    async def aclose(self) -> None:
        """Do nothing: there is nothing to release."""
