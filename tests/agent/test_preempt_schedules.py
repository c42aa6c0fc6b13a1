"""Conversations with answers that are begun early are equal to those without, and never later."""

import math
import random
import re
import zlib
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from specstream.agent import Preempt, ReplyEnded, ReplyFailed, ReplyStarted
from specstream.errors import RequestError
from specstream.listening import taking
from specstream.listening.events import TurnEnded, TurnHeard, TurnPartial, TurnPaused
from specstream.listening.interfaces import Transcript
from specstream.signals import Signal
from specstream.testing import ScriptedModel
from specstream.testing.doubles import ScriptedRecognizer
from specstream.types import Chunk, Mark, Phrase, Span, SpeechBuffer
from tests.server.doubles import WORD_S, WordVoice
from tests.support.rooms import Room

pytestmark = [pytest.mark.virtual_time, pytest.mark.slow]
WORDS = "red blue green cold warm small large early late north south quick calm".split()


class Answers(ScriptedModel):
    """The answer depends on every word of the prompt, so equal answers had equal prompts."""

    def generate(self, messages: Any, *args: Any, **options: Any) -> Any:
        chance = random.Random(repr(messages))
        first = chance.choice(["Sure. ", "Well. ", ""])
        words = chance.choices(WORDS, k=chance.randint(3, 25))
        ends = (word + chance.choice(["", "", "", ",", "."]) for word in words)
        self._replies = [f"{first}{' '.join(ends)} end."]
        return super().generate(messages, *args, **options)


class Voice(WordVoice):
    """Each word has its own sound; counts what it has made."""

    def __init__(self, takes_s: float) -> None:
        super().__init__(rate=8000)
        self.takes_s = takes_s
        self.made_s = 0.0

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        length = int(self.rate * WORD_S)
        self.speaking += 1
        try:
            for index, word in enumerate(re.finditer(r"\w+", phrase.spoken)):
                await anyio.sleep(self.takes_s)
                tone = (zlib.crc32(word.group().encode()) % 30_000).to_bytes(2, "little")
                chars = Span(*(phrase.chars.start + edge for edge in word.span()))
                samples = Span(index * length, (index + 1) * length)
                self.made_s += WORD_S
                yield SpeechBuffer(tone * length, (Mark("word", word.group(), samples, chars),))
        finally:
            self.speaking -= 1


class Wavering(ScriptedRecognizer):
    """Some partial transcripts differ from the final one; which, depends on the turn and the audio."""

    def open(self, *args: Any, **options: Any) -> Any:
        stream = super().open(*args, **options)
        turn, partial = len(self.audio) - 1, stream.partial

        async def wavering() -> Transcript:
            heard = await partial()
            change = random.Random(f"{turn} {len(self.audio[turn])}").randrange(6)
            if change == 0:
                return Transcript(heard.text.rstrip(".?"))
            return Transcript(f"{heard.text} perhaps".strip()) if change == 1 else heard

        stream.partial = wavering  # type: ignore[method-assign]
        return stream


@dataclass
class Said:
    """One question: its words, the pauses between its parts, and what happens upon its answer."""

    text: str
    parts: list[int]
    gap_ms: int
    then: str
    at_s: float


@dataclass
class Schedule:
    seed: int
    questions: list[Said] = field(default_factory=list)

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)
        for number in range(chance.randint(2, 3)):
            count = chance.randint(2, 7)
            words = chance.choices([*WORDS, "and", "the"], k=count)
            text = f"{' '.join(words)} {number}" + chance.choice([".", "?", ""])
            if chance.random() < 0.1:
                text = ""
            first = chance.randint(1, count)
            then = chance.choice(["wait", "wait", "wait", "interrupt", "speak", "type"])
            at_s = chance.choice([0.1, 0.3, 1.0, 2.5])
            gap_ms = chance.choice([0, 120, 240])
            self.questions.append(Said(text, [first, count + 1 - first], gap_ms, then, at_s))
        self.model = {
            "first_token_ms": chance.choice([30, 200, 600]),
            "round_ms": chance.choice([1, 6, 12]),
        }
        self.voice_s = chance.choice([0.0, 0.01, 0.04])
        self.recognizer_s = chance.choice([0.0, 0.05, 0.3])
        self.silence_ms = chance.choice([300, 500])
        self.preempt = Preempt(
            in_speech=chance.random() < 0.6,
            max_starts=chance.choice([1, 3, 9]),
            max_tokens=chance.choice([3, 64]),
            min_hits=chance.choice([0, 0.25]),
        )


class Conversation(Room):
    """A schedule, with answers that are begun early or without."""

    def __init__(self, schedule: Schedule, preempt: Preempt | None) -> None:
        self.schedule = schedule
        self.waits: list[float] = []
        self._changed = Signal()
        self._began = 0  # bytes of the answers before the last question
        heard = [said.text for said in schedule.questions]
        super().__init__(
            heard,
            engine=Answers(["-"], drafted=0, **schedule.model),
            voice=Voice(schedule.voice_s),
            recognizer=Wavering(heard, takes_s=schedule.recognizer_s, word_ms=100),
            preempt=preempt,
            silence_ms=schedule.silence_ms,
            prefix_ms=0,
        )
        write = self.sound.write

        async def written(pcm: bytes, sample_rate: int) -> None:
            await write(pcm, sample_rate)
            self._changed.notify()

        self.sound.write = written  # type: ignore[method-assign]

    async def _read(self) -> None:
        async for event in self.agent:
            self.events.append(event)
            self.times.append(anyio.current_time())
            if isinstance(event.item, TurnHeard):
                self._began = len(self.sound.pcm)
            self._changed.notify()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    def count(self, kind: Any) -> int:
        return sum(isinstance(event.item, kind) for event in self.events)

    async def hold(self) -> None:
        """Have the conversation."""
        async with self.talking():
            for said in self.schedule.questions:
                await self._ask(said)
            await self._until(self._idle)

    def _idle(self) -> bool:
        return self.count(ReplyEnded | ReplyFailed) == self.expected

    @property
    def expected(self) -> int:
        """Answers to what was asked so far."""
        return self.typed + sum(bool(e.transcript.has_words) for e in self.made(TurnHeard))

    typed = 0

    async def _ask(self, said: Said) -> None:
        turns = self.count(TurnEnded)
        for words, gap_ms in zip(said.parts, (said.gap_ms, 0), strict=True):
            await self.speak(words * 100)
            if self.count(TurnEnded) == turns:
                await self.speak(gap_ms, silence=True)
        over = anyio.current_time()
        while self.count(TurnEnded) == turns:
            await self.speak(20, silence=True)
        await self._until(lambda: self.count(TurnHeard) > turns)
        if said.then == "type":
            self.typed += 1
            await self.agent.say("And?")
        if said.text and said.then != "type":
            await self._until(lambda: len(self.sound.pcm) > self._began or self._idle())
            self.waits.append(anyio.current_time() - over)
        if said.then == "wait":
            await self._until(self._idle)
            await anyio.sleep(said.at_s)
            return
        size = int(2 * 8000 * said.at_s)
        await self._until(lambda: len(self.sound.pcm) - self._began >= size or self._idle())
        if said.then == "interrupt":
            self.agent.interrupt()
            await self._until(self._idle)


async def _compare(seed: int) -> tuple[Conversation, Conversation]:
    schedule = Schedule(seed)
    plain, early = Conversation(schedule, None), Conversation(schedule, schedule.preempt)
    await plain.hold()
    await early.hold()
    assert early.told() == plain.told(), schedule
    assert early.sound.pcm == plain.sound.pcm, schedule
    for kind in (ReplyStarted, TurnHeard):
        assert early.made(kind) == plain.made(kind), schedule
    assert [e.outcome.heard for e in early.made(ReplyEnded)] == [
        e.outcome.heard for e in plain.made(ReplyEnded)
    ]
    for later, sooner in zip(plain.waits, early.waits, strict=True):
        assert sooner <= later + 1e-6, schedule
    _accounted(early, plain)
    return plain, early


def _accounted(early: Conversation, plain: Conversation) -> None:
    report, schedule = early.agent.preempted, early.schedule
    begun = len(early.engine.requests) - len(plain.engine.requests)
    assert begun == report.starts - report.hits >= 0 and report.failed == 0, schedule
    written = sum(len(g.report.token_ids) for g in early.engine.generations)
    wanted = sum(len(e.report.token_ids) for e in early.made(ReplyEnded))
    assert written - wanted == report.wasted_tokens, schedule
    assert report.starts <= schedule.preempt.max_starts * len(schedule.questions)
    if early.count(ReplyEnded) and all(e.outcome.complete for e in early.made(ReplyEnded)):
        spoken_s = len(early.sound.pcm) / 2 / 8000
        made_s = early.voice.made_s  # type: ignore[attr-defined]
        assert made_s == pytest.approx(spoken_s + report.wasted_audio_s), schedule


@pytest.mark.parametrize("seeds", [range(15), pytest.param(range(15, 600), marks=pytest.mark.nightly)])
async def test_what_is_heard_and_remembered_is_the_same_as_without(
    seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whether a question goes on depends on how much of a reply was heard, and early answers come sooner.
    monkeypatch.setattr(taking, "RESUMES_MS", -math.inf)
    pairs = [await _compare(seed) for seed in seeds]
    reports = [early.agent.preempted for _, early in pairs]
    hits, starts = (sum(getattr(r, name) for r in reports) for name in ("hits", "starts"))
    assert len(seeds) / 4 < hits < starts, "both kinds happen"
    assert 0 < sum(r.nearly for r in reports) <= starts - hits, "some differ in marks only"


async def _cut(at: Any, steps: int, how: str) -> None:
    """Have a conversation; leave, interrupt or finish some steps after its first event of a kind."""
    schedule = Schedule(2)
    room = Conversation(schedule, Preempt(in_speech=True))
    began = anyio.current_time()

    async def asking() -> None:
        with suppress(RequestError):  # it was finished
            await room._ask(schedule.questions[0])

    with anyio.fail_after(100):
        async with room.agent as agent, anyio.create_task_group() as group:
            group.start_soon(room._read)
            group.start_soon(asking)
            await room._until(lambda: room.count(at) > 0)
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            held = not agent.messages
            assert not held or not (room.sound.pcm or room.count(Chunk | ReplyEnded))
            if how == "interrupt":
                assert agent.interrupt() is None or not held, "nobody hears what is held back"
                await room._until(lambda: room.count(ReplyEnded) > 0)
            elif how == "finish":
                agent.finish()
                await room._until(lambda: room.count(ReplyEnded) > 0)
            group.cancel_scope.cancel()
    assert anyio.current_time() - began < 60
    sound, told = room.sound.pcm, room.told()
    await anyio.sleep(1)
    assert (room.sound.pcm, room.told()) == (sound, told)
    assert room.voice.speaking == 0 and room.recognizer.open_streams == 0
    assert all(g.report.finish_reason for g in room.engine.generations)
    assert not agent._playout._busy
    assert told or not sound
    assert told[:1] in ([], [schedule.questions[0].text]) and len(told) <= 2


@pytest.mark.parametrize("how", ["leave", "interrupt", "finish"])
async def test_at_any_moment_it_can_be_left_interrupted_and_finished(how: str) -> None:
    for at in (TurnPartial, TurnPaused, TurnHeard):
        for steps in (*range(0, 30, 2), 60, 120):
            await _cut(at, steps, how)
