"""An agent in a room with scripted ears, in virtual time."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from specstream import Agent
from specstream.agent import AgentTool, Preempt
from specstream.listening.ears import Ears
from specstream.listening.events import ListenerSettings
from specstream.stages.pipeline import Event
from specstream.testing import ScriptedEngine
from specstream.testing.doubles import ScriptedRecognizer, ScriptedTurnDetector
from tests.server.doubles import WordVoice
from tests.support.turns import TEXT, Sound

RATE = 16_000


class Room:
    """An agent with scripted ears, and a microphone in real (virtual) time."""

    def __init__(
        self,
        heard: Sequence[str | Exception],
        *,
        engine: ScriptedEngine | None = None,
        voice: WordVoice | None = None,
        recognizer: ScriptedRecognizer | None = None,
        preempt: Preempt | None = None,
        sound: Sound | None = None,
        echo: Any = None,
        rate: int = RATE,
        tools: Sequence[AgentTool] = (),
        **settings: Any,
    ) -> None:
        self.engine = engine or ScriptedEngine([TEXT, "Fine."])
        self.voice = voice or WordVoice()
        settings = {"partial_ms": 100, "silence_ms": 300, "by_words": False} | settings
        self.recognizer = recognizer or ScriptedRecognizer(heard, word_ms=100)
        self.detector = ScriptedTurnDetector()
        self.sound = sound or Sound()
        self.events: list[Event] = []
        self.times: list[float] = []
        self.agent = Agent(
            engine=self.engine,
            voice=self.voice,
            play=self.sound,
            ears=Ears(self.recognizer, self.detector),
            echo=echo,
            sample_rate=rate,
            listening=ListenerSettings(**settings),
            preempt=preempt,
            tools=tools,
        )

    @asynccontextmanager
    async def talking(self) -> AsyncGenerator[Agent, None]:
        async with self.agent as agent:
            reading = asyncio.create_task(self._read())
            yield agent
            agent.finish()
            await reading
        assert self.recognizer.open_streams == 0

    async def _read(self) -> None:
        async for event in self.agent:
            self.events.append(event)
            self.times.append(anyio.current_time())

    async def speak(self, ms: int, *, silence: bool = False) -> None:
        """Twenty milliseconds at a time, as a microphone gives them."""
        piece = (b"\0\0" if silence else b"\1\1") * (RATE // 50)
        for _ in range(ms // 20):
            await self.agent.hear(piece)
            await anyio.sleep(0.02)

    def made(self, kind: type) -> list[Any]:
        return [event.item for event in self.events if isinstance(event.item, kind)]

    def told(self) -> list[str]:
        return [m["content"] for m in self.agent.messages]
