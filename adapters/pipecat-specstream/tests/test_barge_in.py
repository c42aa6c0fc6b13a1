"""Real speech that is interrupted: only heard words enter the context, and all of them."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from pipecat.frames.frames import InterruptionFrame, LLMContextFrame, LLMTextFrame, TTSStoppedFrame
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat_specstream import SpecstreamLLMService, SpecstreamTTSService
from specstream import Engine, Speech
from specstream.stages import VoiceStage, load_adapter
from specstream.testing import ScriptedEngine
from support import LATE_S, FrameWatch, TimedOutput, asked, running

RATE = 24_000
TOLD = "Tell me a story about a fox and a bird."
WRITTEN = "At 7:30 Dr. Smith has 3 rooms left, for $5.50. Would you like one of them, or both?"


class Recorded(VoiceStage):
    """A voice's stage that notes when each word of the reply is half heard."""

    def __init__(self, voice: Any) -> None:
        super().__init__(voice)
        self.begin()

    def begin(self) -> None:
        self.words: dict[tuple[int, int], list[int]] = {}

    async def run(self, items: Any) -> AsyncGenerator[Any, None]:
        async for item in super().run(items):
            for mark in item.marks if isinstance(item, Speech) else ():
                if mark.kind == "word":
                    edges = self.words.setdefault(tuple(mark.chars), [*mark.samples])
                    edges[1] = mark.samples.end
            yield item

    def half(self, until: int) -> int:
        """How many words are half heard at a sample, which is the first of the next chunk."""
        return sum((start + end) / 2 < until for start, end in self.words.values())

    def within(self, text: str) -> int:
        """How many words a beginning of the reply has."""
        return sum(end <= len(text) for _, end in self.words)


@pytest.fixture(scope="module")
def voice():
    return load_adapter("voice", "hibari")


class Conversation:
    """A pipeline and its parts."""

    def __init__(self, engine: Any, voice: Any, out: TimedOutput) -> None:
        self.out, self.stage, self.watch = out, Recorded(voice), FrameWatch()
        self.context = asked(TOLD)
        self.pair = LLMContextAggregatorPair(self.context)
        self.llm = SpecstreamLLMService(engine=engine)
        self.tts = SpecstreamTTSService(voice=self.stage)
        self.parts = [self.llm, self.tts, out, self.pair.assistant()]

    def said(self) -> str:
        """What the context has of the reply."""
        last = self.context.get_messages()[-1]
        return last["content"] if last["role"] == "assistant" else ""


async def interrupted(engine: Any, voice: Any, late_s: float, after: int) -> tuple[int, int]:
    """Interrupt a reply after so many samples.

    Returns:
        How many words were half heard, and how many the context has.
    """
    talk = Conversation(engine, voice, TimedOutput(late_s=late_s))
    talk.out.stop_at = after
    async with running(talk.parts, talk.watch) as worker:
        await worker.queue_frame(LLMContextFrame(talk.context))
        await talk.out.reached.wait()
        await worker.queue_frame(InterruptionFrame())
        await talk.watch.seen(lambda who, f: who is talk.out and type(f) is InterruptionFrame)
        heard = talk.out.heard  # with the chunk that was being played
        await talk.watch.seen(lambda who, f: who is talk.parts[-1] and type(f) is InterruptionFrame)
        assert talk.out.heard == heard
        reply = "".join(frame.text for frame in talk.watch.of(LLMTextFrame))
        assert reply.startswith(talk.said())
        return talk.stage.half(heard), talk.stage.within(talk.said())


@pytest.mark.slow
@pytest.mark.parametrize("late_s", [0.0, LATE_S])
async def test_twenty_interruptions(voice, late_s: float):
    moments, talks = random.Random(1), []
    async with Engine.load() as engine:
        for _ in range(20):
            after = int(moments.uniform(0.1, 2.6) * RATE)
            talks.append(await interrupted(engine, voice, late_s, after))
    unheard = sum(max(0, said - heard) for heard, said in talks)
    lost = sum(max(0, heard - said) for heard, said in talks)
    assert (unheard, lost) == (0, 0), f"of heard and kept words: {talks}"
    assert sum(heard for heard, _ in talks) > 60


@pytest.mark.parametrize("late_s", [0.0, LATE_S])
async def test_an_interruption_between_written_forms(voice, late_s: float):
    engine = ScriptedEngine([WRITTEN])
    for after in (10_000, 30_000, 60_000):
        heard, said = await interrupted(engine, voice, late_s, after)
        assert heard == said > 0


async def test_a_whole_reply_enters_letter_for_letter(voice):
    talk = Conversation(ScriptedEngine([WRITTEN]), voice, TimedOutput(times=20))
    async with running(talk.parts, talk.watch) as worker:
        await worker.queue_frame(LLMContextFrame(talk.context))
        await talk.watch.seen(lambda who, f: who is talk.out and type(f) is TTSStoppedFrame)
    assert talk.said() == WRITTEN
