"""The course of a scenario's conversation: who speaks when, what is heard, and what is measured."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from specstream.errors import EngineError, SpecstreamError
from specstream.server.sessions.timings import FirstAudible
from specstream.signals import Signal
from specstream.testing.latency import TurnLatency
from specstream.testing.scenario import Scenario, ScriptedNetwork, TurnScript

__all__ = ["Ear", "Said", "Talk", "Utterance", "counted_on"]


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
        if not pcm:
            return
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


_START_S = 1.0  # how long an agent may take to begin to speak first
_TURN_S = 300.0  # how long a reply may take before the run fails
_SILENCE_S = 30.0  # how long the user stays silent for the agent to notice that the turn is over


async def _ended(over: anyio.Event, what: str) -> None:
    with anyio.move_on_after(_TURN_S):
        return await over.wait()
    raise EngineError(f"no end of {what} in {_TURN_S:.0f} s")


def counted_on(
    progress: Callable[[int, int], object], before: int, total: int
) -> Callable[[int], object]:
    """Turn the progress of a whole run into that of one repetition, which ``before`` turns precede."""
    return lambda done: progress(before + done, total)


@dataclass(frozen=True, slots=True)
class Utterance:
    """What the user says, as frames of audio of one length."""

    frames: list[bytes]
    first: int  # index of the first audible frame
    last: int  # index of the last audible frame


@dataclass(slots=True)
class Said:
    """A turn under way, in seconds of the loop's clock; ``seen`` is when each step was seen."""

    measured: TurnLatency
    began: float = math.nan  # when the user's last sound ended: the wait begins
    onset: float = math.nan  # when the user's first sound began
    seen: dict[str, float] = field(default_factory=dict)
    over: anyio.Event = field(default_factory=anyio.Event)


class Talk(ABC):
    """A scripted conversation. Subclasses connect it to an agent and report what the agent does.

    They call `heard`, `reply_begins`, `step`, `wrote` and `reply_over` as the agent's events come. What
    the agent says before the first turn belongs to no turn; the user lets it finish. ``progress`` is
    called after the first reply to each turn, with the number of turns that were answered.

    Attributes:
        turns: The turns, measured as far as the conversation has got.
        ear: The simulated listener.
        speaking: The number of the turn that was said last, or is being said; -1 before the first.
        answering: The number of the turn whose reply is under way.
    """

    def __init__(
        self, scenario: Scenario, ear: Ear, progress: Callable[[int], object] = lambda done: None
    ) -> None:
        self.scenario = scenario
        self._progress = progress
        self.turns = [Said(TurnLatency(turn.user, turn.typed)) for turn in scenario.turns]
        self.ear = ear
        self.speaking = self.answering = -1
        self._greeting: anyio.Event | None = None  # set at its end
        self._error: SpecstreamError | None = None

    @abstractmethod
    async def read(self) -> None:
        """Follow the agent's events to their end; raise the error that ends the conversation."""

    @abstractmethod
    async def type(self, text: str) -> None:
        """Send ``text`` as a typed turn."""

    @abstractmethod
    async def utterance(self, script: TurnScript) -> Utterance:
        """The turn as audio, in frames of ``listening.frame_ms``."""

    @abstractmethod
    async def send(self, pcm: bytes, due: float) -> None:
        """Send a frame that is complete at ``due``; return once the agent has it."""

    async def hold(self) -> list[TurnLatency]:
        """Run the whole conversation and return its measured turns.

        Raises:
            SpecstreamError: what ended it early.
        """
        async with self._reading():
            with anyio.move_on_after(_START_S):
                await anyio.wait_all_tasks_blocked()  # an agent that speaks first has begun
            for number, script in enumerate(self.scenario.turns):
                await self._say(number, script)
            await self._over(self.turns[-1])
        if self._error is not None:
            raise self._error
        return [turn.measured for turn in self.turns]

    @asynccontextmanager
    async def _reading(self) -> AsyncGenerator[None, None]:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(self._read, scope)
                try:
                    yield
                except SpecstreamError as error:
                    self._error = self._error or error
                group.cancel_scope.cancel()

    async def _read(self, scope: anyio.CancelScope) -> None:
        try:
            await self.read()
        except SpecstreamError as error:
            self._error = error
        if self._error is None and not self.turns[-1].over.is_set():
            self._error = EngineError("the agent ended before the conversation did")
        if self._error is not None:
            scope.cancel()

    def step(self, name: str) -> None:
        """Record that a step of the reply under way was seen now; the first time counts."""
        if self.answering >= 0:
            self.turns[self.answering].seen.setdefault(name, anyio.current_time())

    def wrote(self, text: str) -> None:
        """Add to the text of the reply under way."""
        if self.answering >= 0:
            self.turns[self.answering].measured.reply += text

    def heard(self, step: str) -> None:
        """Record that the agent noticed ``turn_end`` or ``transcript`` of the turn that was said last.

        The latest ``turn_end`` counts, because a pause may be taken for it; so does the latest
        ``transcript`` until the answer begins.
        """
        if self.speaking < 0:
            return
        seen = self.turns[self.speaking].seen
        if step == "turn_end" or "asked" not in seen:
            seen[step] = anyio.current_time()

    def understood(self, text: str) -> None:
        """Record the ``transcript`` of the turn that was said last.

        Raises:
            EngineError: it is empty, so no answer will come.
        """
        self.heard("transcript")
        if text.strip() or self.speaking < 0:
            return
        turn = self.turns[self.speaking]
        if "asked" not in turn.seen and turn.seen.get("turn_end", -math.inf) >= turn.began:
            raise EngineError(f"nothing was understood of {turn.measured.user!r}, so no answer comes")

    def reply_begins(self) -> None:
        """Record that the answer to the turn that was said last begins.

        An earlier answer to the same turn (a pause was taken for the turn's end) is forgotten.
        """
        if self.speaking > self.answering:
            self._measure_interruption(self.turns[self.speaking])
        self.answering = self.speaking
        self.ear.begin()
        if self.answering < 0:
            self._greeting = anyio.Event()
            return
        turn = self.turns[self.answering]
        turn.seen = {step: at for step, at in turn.seen.items() if step in ("turn_end", "transcript")}
        turn.measured.reply = ""
        self.step("asked")

    def _measure_interruption(self, turn: Said) -> None:
        """Now that the reply before it has ended at the ear, by the interruption or by itself."""
        if turn.measured.interrupts is not None and turn.onset < self.ear.end:
            turn.measured.interrupts = True
            turn.measured.stages["interruption_silence"] = (self.ear.end - turn.onset) * 1e3

    def reply_over(self, *, complete: bool) -> None:
        """Record that the reply is over; ``complete``: it was written or heard to its end.

        One that was audible before the user's last sound, or ended while that was to come, answers a
        part of the turn; the answer to the whole is what counts.

        Raises:
            EngineError: nothing of it was audible.
        """
        if self.answering < 0:
            if self._greeting is not None:
                self._greeting.set()
            return
        turn, ear = self.turns[self.answering], self.ear
        if ear.audible is None or ear.arrived is None:
            noticed = turn.seen.get("turn_end", anyio.current_time())
            if not complete and (turn.over.is_set() or noticed < turn.began):
                return  # of an answered turn, or of one that is still being said
            why = "" if complete else ": the reply was cancelled"
            raise EngineError(f"nothing was heard in answer to {turn.measured.user!r}{why}")
        if ear.audible < turn.began:
            return
        turn.seen["arrived"] = ear.arrived
        turn.measured.split(turn.began, turn.seen, ear.audible)
        turn.measured.stages["gap"] = ear.gap_ms
        if not turn.over.is_set():  # an interruption ends a reply that was written to its end
            turn.over.set()
            self._progress(self.answering + 1)

    async def _over(self, turn: Said) -> None:
        await _ended(turn.over, f"the reply to {turn.measured.user!r}")

    async def _say(self, number: int, script: TurnScript) -> None:
        turn = self.turns[number]
        sound = None if script.typed else await self.utterance(script)
        if script.interrupts_after_ms is not None:
            turn.measured.interrupts = False
            await self._until_audible(number - 1, script.interrupts_after_ms / 1e3)
        elif number or self._greeting is not None:
            if number:
                await self._over(self.turns[number - 1])
            elif self._greeting is not None:
                await _ended(self._greeting, "what the agent says first")
            await anyio.sleep_until(self.ear.end + script.pause_ms / 1e3)
        self.speaking = number
        if sound is not None:
            await self._speak(turn, sound)
        else:
            turn.onset = turn.began = anyio.current_time()
            await self.type(script.user)

    async def _until_audible(self, before: int, after_s: float) -> None:
        """Wait until the reply to turn ``before`` has been audible for ``after_s``, or is over."""
        turn = self.turns[before]
        with anyio.move_on_after(_TURN_S):
            while self.answering != before or self.ear.audible is None:
                if turn.over.is_set():
                    return
                await self.ear.news.wait()
            return await anyio.sleep_until(self.ear.audible + after_s)
        raise EngineError(f"no sound in answer to {turn.measured.user!r} in {_TURN_S:.0f} s")

    async def _speak(self, turn: Said, sound: Utterance) -> None:
        """Send the user's audible frames, then silence until the agent notices the end of the turn."""
        length = self.scenario.listening.frame_ms / 1e3
        start = anyio.current_time()
        turn.onset = start + sound.first * length
        turn.began = start + (sound.last + 1) * length
        quiet, most = bytes(len(sound.frames[0])), len(sound.frames) + int(_SILENCE_S / length)
        frame = 0
        while frame <= sound.last or turn.seen.get("turn_end", -math.inf) < turn.began:
            if frame > most:
                raise EngineError(f"the agent never saw the end of {turn.measured.user!r}")
            pcm = sound.frames[frame] if frame < len(sound.frames) else quiet
            frame += 1
            await self.send(pcm, start + frame * length)
