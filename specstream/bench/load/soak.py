"""Measurement of a long conversation: waits, memory growth, and delays of cues behind their sound."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from specstream.agent.agent import Agent
from specstream.bench.load import conversation as talk
from specstream.bench.machine import resident_mb
from specstream.bench.questions import ALOUD, WRITTEN
from specstream.stages.interfaces import SpeechSynthesizer

__all__ = ["HeardAt", "SoakFigures", "converse"]

_WARM = 6  # turns before memory is first measured


class HeardAt:
    """A sink for a `Playout` that plays nothing and records when each sample of a reply was written."""

    def __init__(self) -> None:
        self._starts: list[int] = []  # first samples of the writes
        self._times: list[float] = []
        self._end = self._rate = 0

    def __call__(self, pcm: bytes, sample_rate: int) -> None:
        """Take audio."""
        self._starts.append(self._end)
        self._times.append(anyio.current_time())
        self._end, self._rate = self._end + len(pcm) // 2, sample_rate

    def reply_over(self, cues: Sequence[tuple[float, int]]) -> tuple[float, float]:
        """Return the largest delay of a cue behind its sound, and the silence of all gaps (ms).

        ``cues`` are pairs of a time (seconds of the event loop) and a sample index. The recorded reply
        is cleared.
        """
        late = gaps = 0.0
        for at, sample in cues:
            if sample < self._end:
                written = self._times[bisect_right(self._starts, sample) - 1]
                late = max(late, at - written)
        for start, at in zip(self._starts, self._times, strict=True):
            gaps = max(gaps, at - self._times[0] - start / self._rate)
        self._starts, self._times, self._end = [], [], 0
        return late * 1e3, gaps * 1e3


@dataclass(slots=True)
class SoakFigures:
    """The measurements of a long conversation.

    Attributes:
        minutes: Its duration.
        waits_ms: Each turn's wait for the first audible sample.
        cue_late_ms: The largest delay of a cue behind its sound.
        gaps_ms: The most silence inside one reply, where decoding was slower than speech.
        memory_mb: Resident memory, by the moment when it was measured.
    """

    minutes: float = 0.0
    waits_ms: list[float] = field(default_factory=list)
    cue_late_ms: float = 0.0
    gaps_ms: float = 0.0
    memory_mb: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """All figures as plain data; waits as medians of the first and of the last ten turns."""
        early, late = talk.median(self.waits_ms[:10]), talk.median(self.waits_ms[-10:])
        return {
            "minutes": round(self.minutes, 2),
            "turns": len(self.waits_ms),
            "first_audible_ms": {"first_turns": early, "last_turns": late},
            "largest_cue_delay_ms": round(self.cue_late_ms, 1),
            "longest_gaps_ms": round(self.gaps_ms, 1),
            "memory_mb": {name: round(mb, 1) for name, mb in self.memory_mb.items()},
        }


async def converse(
    agent: Agent,
    heard: HeardAt,
    voice: SpeechSynthesizer,
    seconds: float,
    tell: Callable[[float], None] = lambda _: None,
) -> SoakFigures:
    """Ask the questions over and over, typed and spoken in turn, until ``seconds`` have passed.

    The agent plays through ``heard``. ``tell`` is called after each turn with the seconds that had
    passed when it began. Cancelling loses the figures.

    Raises:
        SpecstreamError: a turn got no reply, or no audible one.
    """
    figures, began = SoakFigures(), anyio.current_time()
    rate = voice.capabilities.sample_rate
    for number, question in enumerate(itertools.cycle(WRITTEN + ALOUD), 1):
        passed = anyio.current_time() - began
        if passed >= seconds:
            break
        if number % 2:
            turn = await talk.ask_in_writing(agent, question)
        else:
            turn = await talk.ask_aloud(agent, question, await talk.said(voice, question), rate)
        figures.waits_ms.append(turn.wait_ms)
        late, gaps = heard.reply_over(turn.cues)
        figures.cue_late_ms = max(figures.cue_late_ms, late)
        figures.gaps_ms = max(figures.gaps_ms, gaps)
        if number == _WARM:
            figures.memory_mb[f"after {_WARM} turns"] = resident_mb()
        tell(passed)
    figures.memory_mb["the end"] = resident_mb()
    figures.minutes = (anyio.current_time() - began) / 60
    return figures
