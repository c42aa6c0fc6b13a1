"""One microphone and one loudspeaker for the arms of `turn_beside_pipecat`, and the arm of an Agent."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import anyio

from specstream import Agent, Chunk, Phrase, Span, Speech
from specstream.agent import ReplyEnded, ReplyStarted
from specstream.listening import TurnHeard
from specstream.server.sessions.timings import audible
from specstream.stages import VoiceStage
from specstream.stages.pipeline import Pipeline
from specstream.stages.stages import SegmentStage

MIC, OUT = 16_000, 24_000  # samples a second
PIECE_S = 0.02
REST_S = 1.2  # of silence between two questions
_WORD = re.compile(r"\S+")


@dataclass(slots=True)
class ReplyWord:
    """A word of a reply, and the samples of the reply that it takes."""

    text: str
    start: int
    end: int


class Loudspeaker:
    """Plays what it is given, one piece after the other, on the clock of the event loop."""

    def __init__(self) -> None:
        self.pieces: list[tuple[float, bytes]] = []  # when the first sample is heard, and all
        self.until = 0.0

    def write(self, pcm: bytes) -> None:
        """Take audio, which is heard at once or behind what is being played."""
        at = max(self.until, anyio.current_time())
        self.pieces.append((at, pcm))
        self.until = at + len(pcm) / 2 / OUT

    def clear(self) -> None:
        """Drop what was not heard yet."""
        now = anyio.current_time()
        kept = [(at, pcm[: 2 * max(0, round((now - at) * OUT))]) for at, pcm in self.pieces]
        self.pieces = [(at, pcm) for at, pcm in kept if pcm]
        self.until = min(self.until, now)

    def first(self, since: float) -> float | None:
        """When the first audible sample was heard since then."""
        for at, pcm in self.pieces:
            heard = at + audible(pcm) / OUT
            if (heard >= since).any():
                return float(heard[heard >= since][0])
        return None

    def last(self, before: float) -> float | None:
        """When the last audible sample was heard of pieces that began before then."""
        for at, pcm in reversed(self.pieces):
            if at <= before and (loud := audible(pcm)).size:
                return at + float(loud[-1]) / OUT
        return None

    def played(self, before: float) -> bytes:
        """What was played of pieces that began before then."""
        return b"".join(pcm for at, pcm in self.pieces if at <= before)


class Sink:
    """A loudspeaker as the play-out of an agent sees it."""

    def __init__(self, speaker: Loudspeaker) -> None:
        self.speaker = speaker

    async def write(self, pcm: bytes, sample_rate: int) -> None:
        """Play audio."""
        assert sample_rate == OUT
        self.speaker.write(pcm)

    def clear(self) -> None:
        """Drop what was not heard."""
        self.speaker.clear()

    async def aclose(self) -> None:
        """Nothing to close."""


class TurnArm(Protocol):
    """One way to hold the conversation."""

    name: str
    speaker: Loudspeaker

    @property
    def stopped(self) -> float | None:
        """When the first reply was interrupted, by the arm's own account."""

    @property
    def steps(self) -> dict[str, float]:
        """When each step of the first reply was done."""

    @property
    def begins(self) -> str:
        """The first piece of text that was spoken."""

    @property
    def written(self) -> str:
        """The first reply so far."""

    async def hear(self, pcm: bytes) -> None:
        """Take 20 ms of the microphone's audio."""

    async def kept(self) -> str:
        """What the history has of the first reply."""

    async def words(self, played: bytes) -> tuple[list[ReplyWord], bool]:
        """The words of the first reply's speech, and whether what was played is its beginning."""

    async def forget(self) -> None:
        """Stop talking, and begin a new conversation."""


class AgentArm:
    """An `Agent` in this process."""

    stopped: float | None
    steps: dict[str, float]
    begins: str

    def __init__(self, name: str, agent: Agent, speaker: Loudspeaker) -> None:
        self.name, self.agent, self.speaker = name, agent, speaker
        self.begin()

    def begin(self) -> None:
        """Before a new conversation."""
        self.stopped, self.steps, self.begins = None, {}, ""
        self.text, self.marks, self.pcm, self.replies = "", list[Any](), bytearray(), 0

    async def follow(self) -> None:
        """Read the events."""
        async for event in self.agent:
            now = anyio.current_time()
            match event.item:
                case ReplyStarted():
                    self.replies += 1
                case TurnHeard() if not self.replies:
                    self.steps["turn over"] = now
                case Chunk() as chunk if self.replies == 1:
                    self.text += chunk.text
                case Phrase() as phrase if self.replies == 1:
                    self.steps.setdefault("first sentence", now)
                    self.begins = self.begins or phrase.text
                case Speech() as piece if self.replies == 1:
                    self.steps.setdefault("first speech", now)
                    self.marks += word_marks(piece)
                    self.pcm += piece.pcm
                case ReplyEnded(outcome=outcome) if self.replies == 1 and not outcome.complete:
                    self.stopped = now

    @property
    def written(self) -> str:
        """See `Arm`."""
        return self.text

    async def hear(self, pcm: bytes) -> None:
        """See `Arm`."""
        await self.agent.hear(pcm)

    async def kept(self) -> str:
        """See `Arm`."""
        messages = self.agent.messages[2:3]
        said = messages[0] if messages else {"role": "", "content": ""}
        return str(said["content"]) if said["role"] == "assistant" else ""

    async def words(self, played: bytes) -> tuple[list[ReplyWord], bool]:
        """See `Arm`."""
        return words_of(self.text, self.marks), self.pcm.startswith(played)

    async def forget(self) -> None:
        """See `Arm`."""
        self.agent.interrupt()
        await rest(self)
        self.agent.interrupt()
        await anyio.sleep(0.1)
        del self.agent.messages[1:]  # behind the system's
        self.speaker.pieces.clear()
        self.begin()


class QuestionFeed:
    """Feeds an arm at the pace of real time: silence, and what is to be said."""

    def __init__(self, arm: TurnArm) -> None:
        self.arm, self.waiting = arm, bytearray()
        self.at = anyio.current_time()  # of the next sample

    async def step(self) -> None:
        """Give the next 20 ms, once they are over."""
        size = 2 * int(PIECE_S * MIC)
        piece = bytes(self.waiting[:size]).ljust(size, b"\0")
        del self.waiting[:size]
        self.at += PIECE_S
        await anyio.sleep_until(self.at)
        await self.arm.hear(piece)

    def say(self, pcm: bytes) -> tuple[float, float]:
        """Say something from the next sample on; when it is first and last audible."""
        loud = audible(pcm)
        begun = self.at + len(self.waiting) / 2 / MIC
        self.waiting += pcm
        return begun + float(loud[0]) / MIC, begun + float(loud[-1]) / MIC


async def rest(arm: TurnArm) -> None:
    """Let an arm hear silence for a while."""
    mouth = QuestionFeed(arm)
    for _ in range(int(REST_S / PIECE_S)):
        await mouth.step()


async def speech(voice: Any, text: str) -> AsyncGenerator[Speech, None]:
    """What `/v1/audio/speech` speaks for a text, as it is made."""

    async def chunks() -> AsyncIterator[Chunk]:
        chars = Span(0, len(text))
        yield Chunk(text, (0,), Span(0, 1), chars, ends=(len(text),), finish_reason="stop")

    pipeline = Pipeline([[VoiceStage(voice)]], head=SegmentStage(lookahead=True))
    async with pipeline.run(chunks()) as run:
        async for event in run:
            if isinstance(event.item, Speech):
                yield event.item


async def spoken(voice: Any, text: str) -> tuple[bytes, list[Any]]:
    """The audio of a text, with the marks of its words."""
    pcm, marks = bytearray(), list[Any]()
    async for piece in speech(voice, text):
        pcm += piece.pcm
        marks += word_marks(piece)
    return bytes(pcm), marks


def word_marks(piece: Speech) -> list[Any]:
    """The marks of a piece's words."""
    return [mark for mark in piece.marks if mark.kind == "word"]


def words_of(text: str, marks: Sequence[Any]) -> list[ReplyWord]:
    """The written words that were spoken, each with the samples of all that is said for it."""
    found: list[ReplyWord] = []
    for match in _WORD.finditer(text):
        mine = [m.samples for m in marks if match.start() <= m.chars.start < match.end()]
        if mine:
            start, end = min(s.start for s in mine), max(s.end for s in mine)
            found.append(ReplyWord(match[0], start, end))
    return found


def plain(text: str) -> str:
    """A word's letters and digits."""
    return re.sub(r"\W", "", text).casefold()
