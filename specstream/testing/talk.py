"""How a scenario's conversation goes: who says what when, and what is measured of it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from specstream.errors import EngineError, SpecstreamError
from specstream.testing.ear import Ear
from specstream.testing.latency import TurnLatency
from specstream.testing.scenario import Scenario, TurnScript

__all__ = ["Said", "Talk", "Utterance"]

_TURN_S = 300.0  # of a turn that never ends
_SILENCE_S = 30.0  # that the user waits for the agent to see that the turn is over


@dataclass(frozen=True, slots=True)
class Utterance:
    """What the user says, as frames of audio; ``quiet`` is a frame of silence."""

    frames: list[bytes]
    quiet: bytes
    first: int  # the first frame that is audible
    last: int


@dataclass(slots=True)
class Said:
    """A turn under way, in seconds of the loop's clock; ``seen`` is when each step was seen first."""

    measured: TurnLatency
    began: float = math.nan  # the user's last sound
    onset: float = math.nan  # the first
    seen: dict[str, float] = field(default_factory=dict)
    over: anyio.Event = field(default_factory=anyio.Event)


class Talk(ABC):
    """A conversation by script. Subclasses reach the agent, and call `reply_begins` and `reply_over`.

    Attributes:
        turns: The turns, measured as far as the conversation has got.
        ear: Who listens.
        speaking: The number of the turn that was said last, or is being said.
        answering: The number of the turn whose reply is under way.
    """

    def __init__(self, scenario: Scenario, ear: Ear) -> None:
        self.scenario = scenario
        self.turns = [Said(TurnLatency(turn.user, turn.typed)) for turn in scenario.turns]
        self.ear = ear
        self.speaking = self.answering = 0
        self._error: SpecstreamError | None = None

    @abstractmethod
    async def read(self) -> None:
        """Follow what the agent tells; raises what ends the conversation."""

    @abstractmethod
    async def type(self, text: str) -> None:
        """Ask something in writing."""

    @abstractmethod
    async def utterance(self, script: TurnScript) -> Utterance:
        """The turn as audio, in frames of ``listening.frame_ms``."""

    @abstractmethod
    async def send(self, pcm: bytes, due: float) -> None:
        """A frame is full at ``due``; returns once the agent has it."""

    async def hold(self) -> list[TurnLatency]:
        """The whole conversation.

        Raises:
            SpecstreamError: what ended it early.
        """
        async with self._reading():
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
        """A step of the reply under way was seen now; the first time counts."""
        self.turns[self.answering].seen.setdefault(name, anyio.current_time())

    def heard(self, step: str) -> None:
        """``turn_end`` or ``transcript`` of the turn that was said last, or of its latest part."""
        seen = self.turns[self.speaking].seen
        if step == "turn_end" or "asked" not in seen:
            seen[step] = anyio.current_time()

    def reply_begins(self) -> None:
        """What comes now answers the turn that was said last: anew, if a pause was taken for its end."""
        self.answering = self.speaking
        turn = self.turns[self.answering]
        turn.seen = {
            step: at for step, at in turn.seen.items() if step in ("turn_end", "transcript")
        }
        turn.measured.reply = ""
        self.step("asked")
        self.ear.begin()

    def reply_over(self, *, complete: bool) -> None:
        """The reply is over; ``complete``: it was heard to its end.

        Raises:
            EngineError: nothing of it was audible.
        """
        turn, ear = self.turns[self.answering], self.ear
        if ear.audible is not None and ear.arrived is not None:
            turn.seen["arrived"] = ear.arrived
            turn.measured.split(turn.began, turn.seen, ear.audible)
            turn.measured.stages["gap"] = ear.gap_ms
        elif complete:
            raise EngineError(f"nothing was heard in answer to {turn.measured.user!r}")
        after = self.turns[self.answering + 1 : self.answering + 2]
        if not complete and after and not math.isnan(after[0].onset):
            silence = max(0.0, ear.end - after[0].onset) * 1e3
            after[0].measured.interrupts = True
            after[0].measured.stages["interruption_silence"] = silence
        turn.over.set()

    async def _over(self, turn: Said) -> None:
        with anyio.move_on_after(_TURN_S):
            return await turn.over.wait()
        raise EngineError(f"no end of the reply to {turn.measured.user!r} in {_TURN_S:.0f} s")

    async def _say(self, number: int, script: TurnScript) -> None:
        turn = self.turns[number]
        sound = None if script.typed else await self.utterance(script)
        if script.interrupts_after_ms is not None:
            turn.measured.interrupts = False
            await self._midst(number - 1, script.interrupts_after_ms / 1e3)
        elif number:
            await self._over(self.turns[number - 1])
            await anyio.sleep_until(self.ear.end + script.pause_ms / 1e3)
        self.speaking = number
        if sound is not None:
            await self._speak(turn, sound)
        else:
            turn.onset = turn.began = anyio.current_time()
            await self.type(script.user)

    async def _midst(self, before: int, after_s: float) -> None:
        """Until the reply before has been audible for so long, or is over."""
        turn = self.turns[before]
        with anyio.move_on_after(_TURN_S):
            while self.answering != before or self.ear.audible is None:
                if turn.over.is_set():
                    return
                await self.ear.news.wait()
            return await anyio.sleep_until(self.ear.audible + after_s)
        raise EngineError(f"no sound in answer to {turn.measured.user!r} in {_TURN_S:.0f} s")

    async def _speak(self, turn: Said, sound: Utterance) -> None:
        """The user's microphone: audible frames, then silence until the turn is seen to be over."""
        length = self.scenario.listening.frame_ms / 1e3
        start = anyio.current_time()
        turn.onset = start + sound.first * length
        turn.began = start + (sound.last + 1) * length
        most = len(sound.frames) + int(_SILENCE_S / length)
        frame = 0
        while frame <= sound.last or turn.seen.get("turn_end", -math.inf) < turn.began:
            if frame > most:
                raise EngineError(f"the agent never saw the end of {turn.measured.user!r}")
            pcm = sound.frames[frame] if frame < len(sound.frames) else sound.quiet
            frame += 1
            await self.send(pcm, start + frame * length)
