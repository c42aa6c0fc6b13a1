"""How many listeners a machine keeps without a gap: the engine's own scheduler, in virtual time.

The costs were measured; what is simulated is only the time that passes. Callers arrive at random at a
steady rate, ask one question each and listen to the end. One text engine serves them in shared passes,
and one voice speaks their phrases one by one.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from specstream.bench.questions import WRITTEN
from specstream.bench.records import percentile
from specstream.config import EngineConfig
from specstream.engine.core.request import Delivery, Request
from specstream.engine.core.scheduler import Scheduler
from specstream.engine.engine import Engine
from specstream.errors import AdapterFailed
from specstream.listening.ears import Ears
from specstream.listening.resampler import Resampler
from specstream.stages.deadline import MOMENT_S, START_S
from specstream.stages.interfaces import SpeechSynthesizer
from specstream.types import Message, Phrase, SamplingParams, Span

__all__ = [
    "BUSY",
    "LISTENS",
    "SPEAKS",
    "Capacity",
    "Order",
    "ServingCosts",
    "capacity",
    "measured_costs",
    "measured_hearing",
    "simulate",
]

Order = Literal["play-out", "arrival"]

_FIRST_TOKENS, _TOKENS = 8, 16  # of the first phrase and of later ones
_SHORTEST, _LONGEST = 24, 256  # tokens of a reply
_BUFFER_S = 32.0  # of sound ahead, at which the server's back-pressure stops a reply
_WANTED_S = 1.0  # 99 % hear the first sound within this time
_REPLIES = 600  # of one simulation
_ROWS, _SAMPLES, _SAYINGS = 16, 6, 5
_PHRASES = (
    "Bees make honey.",
    "In the morning the bees fly out to the meadow, and they come home when the sun is going down.",
)
SPEAKS, LISTENS = 0.45, 0.3  # shares of a conversation's time; the rest is silence
BUSY = 0.7  # more, and those who wait for a part wait longer and longer
_TURN_S = 12.0  # from one question to the next
_STEP = 1.05  # how near the rate is found
_SLOWEST = 1 / 600  # replies a second


@dataclass(frozen=True, slots=True)
class ServingCosts:
    """What things take on this machine, in seconds.

    Attributes:
        pass_s: A pass of the target, without its sequences.
        row_s: Each sequence in it.
        prompt_s: Reading a caller's prompt.
        phrase_s: The voice's start of a phrase.
        sound_s: Its work on a second of sound.
        places: Requests that share a pass.
        token_sound_s: Sound of a token.
        hearing_s: The recogniser's work on a second of speech; 0: nobody listens.
        hearers: Turns that it works on at once.
    """

    pass_s: float
    row_s: float
    prompt_s: float
    phrase_s: float
    sound_s: float
    places: int = 16
    token_sound_s: float = 0.27
    hearing_s: float = 0.0
    hearers: int = 1

    def conversation(
        self, *, cores: int, threads: int, speaks: float = SPEAKS, listens: float = LISTENS
    ) -> dict[str, float]:
        """How many conversations each part of the machine can carry, if it is busy `BUSY` of the time.

        A second of conversation costs the engine ``speaks / token_sound_s`` tokens in full passes and a
        prompt for each phrase of `_TURN_S`, the voice ``speaks`` seconds of sound, and the recogniser
        ``listens`` seconds of speech. The engine, the voice and each of the recogniser's workers are
        one thread each (the engine's passes run on ``threads``), and all of them share the cores.

        Args:
            cores: Of the machine.
            threads: Of the engine's passes.
            speaks: Share of the time in which the agent speaks.
            listens: Share of the time in which the user does.
        """
        token_s = self.pass_s / self.places + self.row_s
        text = speaks / self.token_sound_s * token_s + self.prompt_s / _TURN_S
        voice = speaks * (self.sound_s + self.phrase_s / (_TOKENS * self.token_sound_s))
        ears = listens * self.hearing_s
        parts = {"engine": text, "voice": voice, "recogniser": ears / self.hearers}
        parts["cores"] = (text * threads + voice + ears) / cores
        return {name: BUSY / share for name, share in parts.items() if share > 0}


@dataclass(frozen=True, slots=True)
class Capacity:
    """The highest rate at which nobody hears a gap and 99 % hear the first sound in time.

    Attributes:
        replies_per_minute: The rate.
        listeners: How many listen at once, in the mean.
        first_audio_s_p99: At that rate.
    """

    replies_per_minute: float
    listeners: float
    first_audio_s_p99: float


@dataclass(eq=False, slots=True)
class _Caller:
    request: Request
    asked: float
    tokens: int
    written: int = 0
    spoken: int = 0  # tokens that were given to the voice
    first: float | None = None
    end: float = 0.0  # of the sound that was made
    coming_s: float = 0.0  # sound of phrases that the voice has not spoken
    late_s: float = 0.0

    def phrase(self) -> int:
        """Take the tokens of a phrase that is complete; 0 if none is."""
        size = _TOKENS if self.spoken else _FIRST_TOKENS
        ready = self.written - self.spoken
        if ready < size and self.written < self.tokens:
            return 0
        self.spoken = self.written
        return ready


@dataclass(slots=True)
class _Run:
    costs: ServingCosts
    order: Order
    now: float = 0.0
    callers: list[_Caller] = field(default_factory=list)
    scheduler: Scheduler = field(init=False)
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _phrases: list[tuple[float, int, _Caller, float]] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=count)
    _of: dict[Request, _Caller] = field(default_factory=dict)
    _stepping: bool = False
    _speaking: bool = False

    def __post_init__(self) -> None:
        config = EngineConfig(max_running=self.costs.places, max_waiting=1_000_000)
        self.scheduler = Scheduler(config, lambda: self.now)

    def run(self) -> None:
        """Let all that was planned happen."""
        while self._events:
            self.now, _, happen = heapq.heappop(self._events)
            happen()
            self._step()
            self._speak()

    def at(self, moment: float, happen: Callable[[], None]) -> None:
        """Plan an event."""
        heapq.heappush(self._events, (moment, next(self._numbers), happen))

    def ask(self, tokens: int) -> None:
        """A caller asks now for a reply of so many tokens."""
        request = Request([], SamplingParams(), Delivery(lambda item: None, 1))
        caller = _Caller(request, self.now, tokens)
        self.callers.append(caller)
        self._of[request] = caller
        self._tell(caller)
        self.scheduler.submit(request)

    def _tell(self, caller: _Caller) -> None:
        delivery = caller.request.delivery
        # Back-pressure, as `AudioPacer` and unread chunks make it.
        delivery.sent = int(caller.end - self.now > _BUFFER_S)
        if self.order == "play-out":
            begun = caller.first is not None
            ahead = max(caller.end, self.now) if begun else caller.asked + START_S
            delivery.heard, delivery.needed_by = begun, ahead + caller.coming_s

    def _step(self) -> None:
        if self._stepping:
            return
        while (request := self.scheduler.next()) is not None:
            self.scheduler.start(request)
        for caller in map(self._of.__getitem__, self.scheduler.running):
            self._tell(caller)
        ready = [self._of[request] for request in self.scheduler.ready()]
        if not ready:
            if self.scheduler.running:  # all are parked: look again when the first has less to hear
                self.at(self.now + 0.5, lambda: None)
            return
        fresh = sum(caller.written == 0 for caller in ready)
        costs, self._stepping = self.costs, True
        took = costs.pass_s + costs.row_s * len(ready) + costs.prompt_s * fresh
        self.at(self.now + took, lambda: self._written(ready))

    def _written(self, ready: list[_Caller]) -> None:
        self._stepping = False
        for caller in ready:
            caller.written += 1
            if tokens := caller.phrase():
                seconds = tokens * self.costs.token_sound_s
                due = self.now
                if self.order == "play-out":
                    first = max(caller.asked + START_S, self.now + MOMENT_S)
                    due = first if caller.first is None else caller.end
                caller.coming_s += seconds
                heapq.heappush(self._phrases, (due, next(self._numbers), caller, seconds))
            if caller.written == caller.tokens:
                self.scheduler.retire(caller.request)

    def _speak(self) -> None:
        if self._speaking or not self._phrases:
            return
        self._speaking = True
        _, _, caller, seconds = heapq.heappop(self._phrases)
        took = self.costs.phrase_s + self.costs.sound_s * seconds
        self.at(self.now + took, lambda: self._spoken(caller, seconds))

    def _spoken(self, caller: _Caller, seconds: float) -> None:
        self._speaking = False
        caller.coming_s -= seconds
        if caller.first is None:
            caller.first = caller.end = self.now
        caller.late_s += max(0.0, self.now - caller.end)
        caller.end = max(caller.end, self.now) + seconds


async def measured_costs(engine: Engine, voice: SpeechSynthesizer) -> ServingCosts:
    """Measure what things take here, alone and in turn; a few seconds. Cancelling it stops.

    A prompt's cost is that of a question behind a system message that was read before.

    Raises:
        AdapterFailed: the voice is silent.
    """
    from specstream.drafting.calibration import pass_ms

    few_ms, many_ms = await engine.ask(lambda core: pass_ms(core.target, (1, _ROWS)))
    row_s = max(0.0, many_ms - few_ms) / (_ROWS - 1) / 1e3
    pass_s = few_ms / 1e3 - row_s
    reads, system = list[float](), engine.manner.system
    for question in WRITTEN[:_SAMPLES]:
        asked: list[Message] = [{"role": "user", "content": question}]
        if system:
            asked.insert(0, {"role": "system", "content": system})
        async with engine.generate(asked, SamplingParams(max_tokens=1)) as generation:
            async for _ in generation:
                pass
        reads.append(generation.report.ttft_ms / 1e3)
    said: list[list[tuple[float, float]]] = [[] for _ in _PHRASES]
    # The first time isn't counted: what a voice needs is loaded then.
    for again in range(_SAYINGS + 1):
        for text, times in zip(_PHRASES, said, strict=True):
            found = await _spoken(voice, text)
            times += [found] if again else []
    (short_s, short_work_s), (long_s, long_work_s) = (
        (statistics.median(column) for column in zip(*times, strict=True)) for times in said
    )
    sound_s = max(0.0, (long_work_s - short_work_s) / (long_s - short_s))
    return ServingCosts(
        pass_s=max(pass_s, 0.0),
        row_s=row_s,
        prompt_s=max(0.0, statistics.median(reads[1:]) - pass_s - row_s),
        phrase_s=max(0.0, short_work_s - sound_s * short_s),
        sound_s=sound_s,
        places=engine.places,
    )


async def _spoken(voice: SpeechSynthesizer, text: str) -> tuple[float, float]:
    """Say a phrase; returns its seconds of sound, and of the voice's work."""
    phrase = Phrase(text, Span(0, len(text)), Span(0, 1), index=0)
    began, samples = time.perf_counter(), 0
    async for buffer in voice.synthesize(phrase):
        samples += len(buffer.pcm) // 2
    if not samples:
        raise AdapterFailed(f"the voice gave no sound for {text!r}")
    return samples / voice.capabilities.sample_rate, time.perf_counter() - began


async def measured_hearing(ears: Ears, voice: SpeechSynthesizer) -> float:
    """Measure the recogniser's seconds of work on a second of the voice's speech.

    Raises:
        AdapterFailed: the recogniser broke.
    """
    text, rate = _PHRASES[-1], ears.sample_rate
    phrase, resampler = Phrase(text, Span(0, len(text)), Span(0, 1), index=0), None
    pcm = bytearray()
    async for buffer in voice.synthesize(phrase):
        resampler = resampler or Resampler(voice.capabilities.sample_rate, rate)
        pcm += resampler.push(buffer.pcm)
    took = list[float]()
    for _ in range(3):
        stream = ears.recognizer.open(rate)
        try:
            stream.add(bytes(pcm))
            began = time.perf_counter()
            await stream.finish()
            took.append(time.perf_counter() - began)
        finally:
            await stream.aclose()
    return statistics.median(took) / (len(pcm) / 2 / rate)


def simulate(
    costs: ServingCosts, order: Order, rate: float, *, replies: int = _REPLIES, seed: int = 0
) -> tuple[float, float, float]:
    """Serve callers that arrive at ``rate`` a second.

    Returns:
        The 99th percentile of the time to the first sound, the seconds of silence inside all replies,
        and how many listened at once in the mean.
    """
    rng, run, moment = random.Random(seed), _Run(costs, order), 0.0
    for _ in range(replies):
        moment += rng.expovariate(rate)
        tokens = rng.randint(_SHORTEST, _LONGEST)
        run.at(moment, lambda tokens=tokens: run.ask(tokens))  # type: ignore[misc]
    run.run()
    first = [(caller.first or math.inf) - caller.asked for caller in run.callers]
    sound_s = sum(caller.end - (caller.first or 0.0) for caller in run.callers)
    return percentile(first, 0.99), sum(c.late_s for c in run.callers), sound_s / moment


def capacity(costs: ServingCosts, order: Order) -> Capacity:
    """Find the highest rate that can be kept, in steps of 5 %; all zero if none can."""
    found = Capacity(0.0, 0.0, 0.0)
    # A reply takes at least its passes, so this rate is out of reach.
    tokens, places = (_SHORTEST + _LONGEST) / 2, costs.places
    least, most = 0.0, places / (tokens * (costs.pass_s + places * costs.row_s))
    while most > _STEP * least and most > _SLOWEST:
        rate = max((least + most) / 2, _SLOWEST)
        first_s, late_s, listeners = simulate(costs, order, rate)
        if first_s > _WANTED_S or late_s > 0:
            most = min(rate, most * 0.99)
        else:
            least = rate
            found = Capacity(round(60 * rate, 1), round(listeners, 1), round(first_s, 2))
    return found
