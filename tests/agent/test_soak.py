"""Ten minutes of conversation in virtual time: nothing grows, and cues stay with their sound."""

import asyncio
import gc
import tracemalloc

import anyio
import numpy as np
import pytest

from specstream import Agent
from specstream.agent import ReplyEnded, ReplyPaused, ReplyResumed, ReplyStarted
from specstream.listening.ears import Ears
from specstream.listening.events import ListenerSettings
from specstream.testing import ScriptedEngine
from specstream.testing.doubles import ScriptedRecognizer, ScriptedTurnDetector
from specstream.types import AvatarCue
from tests.server.doubles import OneCueFace, OneShotBoard, WordVoice
from tests.support.turns import TEXT, Sound

pytestmark = [pytest.mark.virtual_time, pytest.mark.slow]
RATE, VOICE_RATE = 16_000, 24_000
TURNS, WARM, TRACED = 120, 20, 80
PACE_MS = 40  # how late a cue may be
TONE = np.rint(9000 * np.sin(np.arange(VOICE_RATE // 20) * 0.1)).astype("<i2").tobytes()


class Clocked(Sound):
    """A sink that also knows when each sample was due, and the largest delay."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.late_ms = 0.0

    async def write(self, pcm: bytes, sample_rate: int) -> None:
        now = anyio.current_time() * 1e3
        self.first = self.first if self.pcm else now
        self.late_ms = max(self.late_ms, now - self.first - self.ms)
        await super().write(pcm, sample_rate)

    def next(self) -> None:
        self.pcm, self.late_ms = b"", 0.0


class Conversation:
    """An agent with a voice, a face, shots and ears, and what became of its replies."""

    def __init__(self) -> None:
        self.engine, self.sound = ScriptedEngine([TEXT]), Clocked()
        self.recognizer = ScriptedRecognizer(["Hello there.", "", "Wait a moment."] * TURNS)
        self.recognizer.word_ms = 100
        self.texts = self.recognizer._texts
        self.agent = Agent(
            engine=self.engine,
            voice=WordVoice(VOICE_RATE),
            avatar=OneCueFace(),
            prompts=OneShotBoard(),
            ears=Ears(self.recognizer, ScriptedTurnDetector()),
            sample_rate=RATE,
            listening=ListenerSettings(partial_ms=100, silence_ms=300, by_words=False),
            play=self.sound,
        )
        self.complete = self.cut = self.coughs = self.cues_checked = 0
        self.late_ms = 0.0

    async def read(self) -> None:
        cues: list[AvatarCue] = []
        paused = False
        async for event in self.agent:
            match event.item:
                case ReplyStarted():
                    cues, paused = [], False
                case AvatarCue(name="aa") as cue:
                    cues.append(cue)
                case ReplyPaused():
                    paused = True
                case ReplyResumed():
                    self.coughs += 1
                case ReplyEnded(outcome=outcome):
                    self.complete += outcome.complete
                    self.cut += not outcome.complete
                    self.check(cues)
                    if not paused:
                        self.late_ms = max(self.late_ms, self.sound.late_ms)
                    self.sound.next()

    def check(self, cues: list[AvatarCue]) -> None:
        """The word's tone begins in what was played at the very sample that its cue names."""
        for cue in cues:
            at = 2 * cue.samples.start
            if at + len(TONE) <= len(self.sound.pcm):
                assert self.sound.pcm[at : at + len(TONE)] == TONE
                assert cue.t_ms == pytest.approx(cue.samples.start / VOICE_RATE * 1e3)
                self.cues_checked += 1

    async def speak(self, ms: int, *, silence: bool = False) -> None:
        piece = 500 if silence else 100
        for _ in range(ms // piece):
            await self.agent.hear((b"\0\0" if silence else b"\1\1") * (RATE * piece // 1000))
            await anyio.sleep(piece / 1000)

    async def turn(self, number: int) -> None:
        """Five seconds: a typed or a spoken question, a cough or a word in the middle of a reply."""
        if number % 2 == 0:
            await self.speak(400)
        else:
            await self.agent.say("Tell me")
            await self.speak(500, silence=True)
            await self.speak(400)
        await self.speak(5000 if number % 2 == 0 else 4500, silence=True)
        self.agent.messages.clear()  # the doubles keep everything, too
        for double in (self.engine, self.recognizer):
            for kept in vars(double).values():
                if isinstance(kept, list) and kept not in (self.texts, [TEXT]):
                    kept.clear()


def counted() -> tuple[int, int, int]:
    """Tasks, objects, traced bytes."""
    gc.collect()
    return len(asyncio.all_tasks()), len(gc.get_objects()), tracemalloc.get_traced_memory()[0]


async def test_ten_minutes_of_conversation_leave_nothing_behind() -> None:
    talk = Conversation()
    began = anyio.current_time()
    async with talk.agent as agent:
        reading = asyncio.create_task(talk.read())
        try:
            for number in range(TURNS):
                if number == WARM:
                    warm = counted()
                elif number == TRACED - 50:
                    tracemalloc.start()  # everything takes twice as long
                elif number == TRACED:
                    traced = counted()
                await talk.turn(number)
            end = counted()
        finally:
            tracemalloc.stop()
        agent.finish()
        await reading
    assert anyio.current_time() - began >= 600
    assert end[0] == warm[0]
    assert abs(end[1] - warm[1]) < TURNS - WARM, "less than one object a turn"
    # CPython's cache of attribute look-ups fills with copies of their names, 300 bytes a turn at first.
    assert end[2] - traced[2] < 1024 * (TURNS - TRACED), "less than a kilobyte a turn"
    assert talk.late_ms <= PACE_MS
    assert talk.recognizer.open_streams == 0
    assert (talk.complete, talk.cut, talk.coughs) == (100, 40, 20)
    assert talk.cues_checked > 1000
