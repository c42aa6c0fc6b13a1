"""Measurement of spoken conversations: waits, word errors; over a long one memory and late cues, too.

Questions are asked as text, then as speech: the agent's own voice synthesizes them, and the audio is fed
to the agent's recogniser at the pace of real time. Every wait is the sum of its parts.
"""

from __future__ import annotations

import itertools
import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from specstream.agent.agent import Agent
from specstream.agent.events import ReplyEnded, ReplyFailed, ReplyStarted
from specstream.bench.machine import resident_mb
from specstream.bench.questions import ALOUD, WRITTEN, WordErrors
from specstream.errors import EngineError, SpecstreamError
from specstream.listening.events import TurnEnded, TurnHeard, TurnLost
from specstream.listening.interfaces import Recognizer
from specstream.listening.resampler import Resampler
from specstream.playback.playout import Playout
from specstream.server.sessions.timings import FirstAudible, audible
from specstream.stages.interfaces import SpeechSynthesizer
from specstream.types import AvatarCue, Chunk, Phrase, Span, Speech

__all__ = [
    "ConversationFigures",
    "HeardAt",
    "SoakFigures",
    "TurnFigures",
    "ask_aloud",
    "ask_in_writing",
    "converse",
    "heard_as",
    "interrupted",
    "median",
    "said",
]

_FRAME_S = 0.02  # seconds of audio that the agent is given at once
_REPLY_S = 120.0  # seconds after which a turn without an end is given up


@dataclass(slots=True)
class TurnFigures:
    """The measurements of one turn.

    Attributes:
        asked: The question.
        parts: Milliseconds by part, in order; they sum to the wait for the first audible sample.
        heard: The recogniser's transcript of a spoken question.
        reply: The text of the reply.
        spoken: The words that the voice said.
        pcm: The voice's audio, signed 16-bit little-endian mono at ``sample_rate``.
        sample_rate: Samples a second.
        cues: The avatar's cues: when each came, in seconds of the event loop, and its first sample.
    """

    asked: str
    parts: dict[str, float] = field(default_factory=dict)
    heard: str = ""
    reply: str = ""
    spoken: str = ""
    pcm: bytearray = field(default_factory=bytearray)
    sample_rate: int = 24_000
    cues: list[tuple[float, int]] = field(default_factory=list)

    @property
    def wait_ms(self) -> float:
        """Milliseconds until the first audible sample."""
        return sum(self.parts.values())


class _Watch:
    """Reads an agent's events to the end of one reply, and records each stage's first output."""

    def __init__(self, agent: Agent, asked: str) -> None:
        self._agent = agent
        self.turn = TurnFigures(asked)
        self._at: dict[str, float] = {}  # milliseconds of the event loop, by part of the wait
        self._audible = FirstAudible()
        self._error: SpecstreamError | None = None
        self.over = anyio.Event()

    async def follow(self) -> None:
        """Read to the end of the reply; errors are raised by `split`."""
        with anyio.move_on_after(_REPLY_S) as scope:
            async for event in self._agent:
                if self._take(event.item, anyio.current_time() * 1e3):
                    break
        if scope.cancelled_caught:
            self._error = EngineError(f"no reply to {self.turn.asked!r} in {_REPLY_S:.0f} s")
        self.over.set()

    def _take(self, item: object, now: float) -> bool:
        first = self._at.setdefault
        match item:
            case TurnEnded():
                self._at["end of turn"] = now  # the last one counts: a pause may look like an end
            case TurnHeard(transcript=transcript):
                self._at["transcript"] = now
                self.turn.heard = f"{self.turn.heard} {transcript.text}".strip()
            case TurnLost(error=error) | ReplyFailed(error=error):
                self._error = error
                return True
            case ReplyStarted():
                first("asked", now)
            case Chunk(token_ids=ids) as chunk if ids:
                first("first token", now)
                self.turn.reply += chunk.text
            case Phrase():
                first("first phrase", now)
            case Speech() as speech:
                first("voice", now)
                self._audible.add(speech.samples.start, speech.sample_rate, speech.pcm, now)
                words = [mark.text for mark in speech.marks if mark.kind == "word"]
                self.turn.spoken = " ".join([self.turn.spoken, *words]).lstrip()
                self.turn.pcm += speech.pcm
                self.turn.sample_rate = speech.sample_rate
            case AvatarCue(samples=samples):
                self.turn.cues.append((now / 1e3, samples.start))
            case ReplyEnded():
                return True
        return False

    def split(self, began: float, names: Sequence[str]) -> None:
        """Fill in the turn's parts: the wait since ``began`` (ms), cut at the stages in ``names``.

        Raises:
            AdapterFailed: the question was not recognised.
            EngineError: nothing audible was said.
            SpecstreamError: what ended the reply.
        """
        if self._error is not None:
            raise self._error
        if self._audible.ttfa_ms is None:
            raise EngineError(f"nothing was heard in answer to {self.turn.asked!r}")
        for name in names:
            at = max(began, self._at.get(name, began))
            self.turn.parts[name], began = at - began, at
        self.turn.parts["silence before the sound"] = max(0.0, self._audible.ttfa_ms - began)


_WRITTEN = ("first token", "first phrase", "voice")
_SPOKEN = ("end of turn", "transcript", *_WRITTEN)


async def ask_in_writing(agent: Agent, question: str) -> TurnFigures:
    """Ask one typed question and measure the turn; cancelling leaves the agent in the middle of it.

    Raises:
        SpecstreamError: there was no reply, or no audible one.
    """
    agent.messages.clear()
    watch, began = _Watch(agent, question), anyio.current_time() * 1e3
    await agent.say(question)
    await watch.follow()
    watch.split(began, _WRITTEN)
    return watch.turn


async def ask_aloud(agent: Agent, question: str, pcm: bytes, sample_rate: int) -> TurnFigures:
    """Ask one spoken question and measure the turn.

    ``pcm`` is fed at the pace of real time, then silence until the reply is over. The wait counts from
    the last audible sample of the question.

    Raises:
        SpecstreamError: there was no reply, or no audible one.
    """
    agent.messages.clear()
    watch, began = _Watch(agent, question), math.nan
    last = 2 * int(audible(pcm)[-1])
    size = 2 * int(sample_rate * _FRAME_S)
    async with anyio.create_task_group() as group:
        group.start_soon(watch.follow)
        due, at = anyio.current_time(), 0
        while not watch.over.is_set():
            await agent.hear(pcm[at : at + size].ljust(size, b"\0"))
            if at <= last < at + size:
                began = anyio.current_time() * 1e3
            at, due = at + size, due + _FRAME_S
            await anyio.sleep_until(due)
    watch.split(began, _SPOKEN)
    return watch.turn


async def said(voice: SpeechSynthesizer, text: str) -> bytes:
    """Synthesize ``text``: 16-bit mono PCM at the voice's sample rate."""
    phrase = Phrase(text, Span(0, len(text)), Span(0, 0))
    return b"".join([buffer.pcm async for buffer in voice.synthesize(phrase)])


async def heard_as(recognizer: Recognizer, pcm: bytes, sample_rate: int) -> str:
    """Return the recogniser's transcript of speech."""
    rates = recognizer.capabilities.sample_rates
    rate = sample_rate if sample_rate in rates else rates[0]
    resampler, stream = Resampler(sample_rate, rate), recognizer.open(rate)
    try:
        stream.add(resampler.push(pcm) + resampler.flush())
        return (await stream.finish()).text
    finally:
        await stream.aclose()


@dataclass(slots=True)
class ConversationFigures:
    """The measurements of a conversation; ``memory_mb`` is by the moment of the measurement."""

    written: list[TurnFigures] = field(default_factory=list)
    aloud: list[TurnFigures] = field(default_factory=list)
    questions: WordErrors = field(default_factory=WordErrors)
    answers: WordErrors = field(default_factory=WordErrors)
    silence_ms: list[float] = field(default_factory=list)
    memory_mb: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """All figures as plain data; waits as medians in milliseconds."""
        return {
            "written": _waits(self.written),
            "aloud": _waits(self.aloud),
            "word_error_rate": {
                "questions": self.questions.to_dict(),
                "answers": self.answers.to_dict(),
            },
            "interruptions": len(self.silence_ms),
            "interruption_to_silence_ms": median(self.silence_ms),
            "memory_mb": {name: round(mb, 1) for name, mb in self.memory_mb.items()},
        }


def median(values: Sequence[float]) -> float | None:
    """The median, rounded to a tenth; None without values."""
    return round(statistics.median(values), 1) if values else None


def _waits(turns: Sequence[TurnFigures]) -> dict[str, Any]:
    names = list(turns[0].parts) if turns else []
    waits = sorted(turn.wait_ms for turn in turns)
    return {
        "turns": len(turns),
        "first_audible_ms": median(waits),
        "p95_ms": round(waits[math.ceil(0.95 * len(waits)) - 1], 1) if waits else None,
        "parts_ms": {name: median([turn.parts[name] for turn in turns]) for name in names},
    }


async def interrupted(
    make: Callable[[Playout], Agent], questions: Sequence[str], *, after_s: float = 0.4
) -> list[float]:
    """Interrupt the reply to each question; return the milliseconds until silence.

    The interruption comes ``after_s`` seconds after the reply's first audio; a reply that has ended by
    then isn't counted. ``make`` returns an agent that plays through the given play-out. Audio that the
    play-out's sink has received and not played yet counts as sound.
    """
    ends = [0.0]

    def write(pcm: bytes, sample_rate: int) -> None:
        ends[0] = max(ends[0], anyio.current_time()) + len(pcm) / 2 / sample_rate

    waits: list[float] = []
    async with make(Playout(write, audible=False)) as agent:
        for question in questions:
            await agent.say(question)
            async for event in agent:
                if isinstance(event.item, Speech) and event.item.pcm:
                    break
            await anyio.sleep(after_s)
            began = anyio.current_time()
            speaking = agent.interrupt() is not None and ends[0] > began
            with anyio.fail_after(_REPLY_S):
                async for event in agent:
                    if isinstance(event.item, ReplyEnded | ReplyFailed):
                        break
            if speaking:
                waits.append(max(0.0, ends[0] - began) * 1e3)
    return waits


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
        early, late = median(self.waits_ms[:10]), median(self.waits_ms[-10:])
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
            turn = await ask_in_writing(agent, question)
        else:
            turn = await ask_aloud(agent, question, await said(voice, question), rate)
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
