"""Turns with a scripted model and a voice of 200 ms a word, in virtual time."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from specstream.playback.playout import Playout
from specstream.playback.turn import Turn
from specstream.stages.pipeline import Event, Pipeline
from specstream.stages.stages import AvatarStage, PromptStage, SegmentStage, VoiceStage
from specstream.testing import ScriptedEngine, ScriptedGeneration, ScriptedSession
from tests.server.doubles import Gate, OneCueFace, OneShotBoard, WordVoice

WORD_MS = 200
TEXT = "word0 word1 word2 word3 word4. Word5 word6 word7 word8 word9."  # ten tokens, two phrases


def first(words: int) -> str:
    """The text up to a word, with its punctuation."""
    return " ".join(TEXT.split()[:words])


class Sound:
    """A sink that keeps what was written."""

    def __init__(self) -> None:
        self.pcm = b""
        self.cleared = 0

    async def write(self, pcm: bytes, sample_rate: int) -> None:
        self.pcm += pcm

    def clear(self) -> None:
        self.cleared += 1

    async def aclose(self) -> None:
        return None

    @property
    def ms(self) -> float:
        return len(self.pcm) / 2 / 24


class Stage:
    """A conversation with everything it needs; ``gate`` holds the model back."""

    def __init__(self, *replies: Any, voice: Any = None, **options: Any) -> None:
        self.gate = Gate(shut=False)
        self.engine = ScriptedEngine(replies or (TEXT,), gate=self.gate)
        self.session = ScriptedSession(self.engine)
        self.voice: Any = voice or WordVoice()
        self.sound = Sound()
        self.playout = Playout(self.sound, **options)
        self.pipeline = Pipeline(
            [[VoiceStage(self.voice), AvatarStage(OneCueFace())], [PromptStage(OneShotBoard())]],
            head=SegmentStage(clock=anyio.current_time),
        )
        self.events: list[Event] = []

    @asynccontextmanager
    async def turn(self, text: str = "Hi") -> AsyncGenerator[Turn[ScriptedGeneration], None]:
        async with self.session.turn(text, self.pipeline, self.playout) as turn:
            yield turn

    async def read(self, turn: Turn[ScriptedGeneration]) -> None:
        async for event in turn:
            self.events.append(event)

    @asynccontextmanager
    async def reading(
        self, text: str = "Hi"
    ) -> AsyncGenerator[tuple[Turn[ScriptedGeneration], asyncio.Task[None]], None]:
        """A turn whose events are read by another task."""
        async with self.turn(text) as turn:
            task = asyncio.create_task(self.read(turn))
            try:
                yield turn, task
            finally:
                task.cancel()
                await asyncio.wait([task])

    def told(self) -> list[str]:
        return [f"{m['role']}: {m['content']}" for m in self.session.messages]

    def items(self, kind: type) -> list[Any]:
        return [event.item for event in self.events if isinstance(event.item, kind)]
