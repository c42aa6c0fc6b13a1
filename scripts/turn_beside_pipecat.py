"""What `scripts/turn-beside-pipecat` runs, in an environment that has Pipecat.

Four arms hear the same audio in pieces of 20 ms, each handed over when a microphone would have it, and
play into the same loudspeaker: `Agent` and Pipecat, each with its own defaults, and each with 500 ms of
silence as the only sign of a turn's end. Pipecat is given the pipeline of its guides:
`OpenAISTTService`, `OpenAILLMService` and `OpenAITTSService`, all at `specstream serve`, Silero in the
user aggregator and, in its defaults, Smart Turn. Arms take turns, and the first of each round changes.
Every question begins a new conversation.

A word of a reply was *heard* if it had ended before the sound stopped, by the marks of the voice, which
are found for Pipecat by speaking its sentences again and comparing every sample. *Unheard words kept*
are words of the history that had not begun; *heard words lost* are words that had ended and aren't in
it. The word at the cut counts as neither.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TextIO

import anyio
from loguru import logger
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.frames.frames import (
    EndFrame,
    Frame,
    InputAudioRawFrame,
    InterruptionFrame,
    OutputAudioRawFrame,
    StartFrame,
)
from pipecat.pipeline.pipeline import Pipeline as PipecatPipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.openai.stt import OpenAISTTService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.transports.base_input import BaseInputTransport
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams
from pipecat.turns.user_stop import SpeechTimeoutUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies
from pipecat.workers.runner import WorkerRunner

from specstream import Agent, Chunk, Engine, Phrase, Span, Speech
from specstream.agent import ReplyEnded, ReplyStarted
from specstream.bench.machine import cpu_name
from specstream.bench.questions import ALOUD, FIRST
from specstream.listening import ListenerSettings, TurnHeard
from specstream.listening.resampler import Resampler
from specstream.playback import Playout
from specstream.server.sessions.timings import audible
from specstream.stages import VoiceStage, load_adapter
from specstream.stages.pipeline import Pipeline
from specstream.stages.stages import SegmentStage

MIC, OUT = 16_000, 24_000  # samples a second
PIECE_S = 0.02
BEFORE_S = 0.6  # of silence before a question
SILENCE_S = 0.5  # that ends a turn in the arms with equal silences
VAD_STOP_S = 0.2  # of which Pipecat's voice detection takes so much
WAIT_S = 20.0  # for an answer, or for silence
GAP_S = 3.0  # a longer silence is a reply's end
REST_S = 1.2  # of silence between two questions
LONG = (  # asked to be interrupted
    "Tell me a short story about a lighthouse.",
    "Can you explain how a rainbow is made?",
    "How do airplanes stay in the air?",
    "Describe a morning in a small fishing village.",
    "How do birds find their way in winter?",
    "What is the difference between weather and climate?",
    "Tell me something about the planet Mars.",
    "How is cheese made?",
)
BREAKS = (
    "Wait, please stop for a moment. Who was Albert Einstein?",
    "Sorry, I have another question. What do bees eat?",
    "No, I meant something else. How old is the moon?",
)
AFTER_S = (0.8, 1.6, 2.4, 1.2, 2.0, 2.8)  # from the reply's first sound to the interruption
_WORD = re.compile(r"\S+")
Breaks = tuple[float, bytes] | None
"""Seconds from a reply's first sound to an interruption, and what is said."""


@dataclass(slots=True)
class Word:
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


class Arm(Protocol):
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

    async def words(self, played: bytes) -> tuple[list[Word], bool]:
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
                case Speech() as speech if self.replies == 1:
                    self.steps.setdefault("first speech", now)
                    self.marks += [mark for mark in speech.marks if mark.kind == "word"]
                    self.pcm += speech.pcm
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

    async def words(self, played: bytes) -> tuple[list[Word], bool]:
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


class Microphone(BaseInputTransport):
    """Gives a Pipecat pipeline what it is given."""

    async def start(self, frame: StartFrame) -> None:
        """Begin."""
        await super().start(frame)
        await self.set_transport_ready(frame)


class Output(BaseOutputTransport):
    """Plays at the pace of its samples: each write returns when its audio has been heard."""

    def __init__(self, params: TransportParams, speaker: Loudspeaker) -> None:
        super().__init__(params)
        self.speaker = speaker
        self.stopped: float | None = None

    async def start(self, frame: StartFrame) -> None:
        """Begin."""
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Note when a reply is interrupted."""
        await super().process_frame(frame, direction)
        if isinstance(frame, InterruptionFrame) and self.speaker.pieces and self.stopped is None:
            self.stopped = anyio.current_time()

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        """Play audio."""
        assert frame.sample_rate == OUT and frame.num_channels == 1
        self.speaker.write(frame.audio)
        await anyio.sleep_until(self.speaker.until)
        return True


class NotedVoice(OpenAITTSService):
    """Pipecat's voice, which also notes the texts that it is given, and when."""

    def begin(self) -> None:
        """Before a new conversation."""
        self.said: list[str] = []
        self.first_text: float | None = None
        self.first_speech: float | None = None

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame, None]:
        """See Pipecat."""
        self.said.append(text)
        self.first_text = self.first_text or anyio.current_time()
        async for frame in super().run_tts(text, context_id):
            if getattr(frame, "audio", b""):
                self.first_speech = self.first_speech or anyio.current_time()
            yield frame


class PipecatArm:
    """Pipecat's own services at a server's address."""

    def __init__(
        self,
        name: str,
        base: str,
        system: str,
        strategies: UserTurnStrategies | None,
        voice: Any,
    ) -> None:
        self.name, self.voice = name, voice
        self.speaker = Loudspeaker()
        served: dict[str, Any] = {"base_url": base, "api_key": "none"}
        self.context = LLMContext()
        vad = SileroVADAnalyzer()
        user = LLMUserAggregatorParams(vad_analyzer=vad, user_turn_strategies=strategies)
        pair = LLMContextAggregatorPair(self.context, user_params=user)
        params = TransportParams(audio_in_enabled=True, audio_out_enabled=True)
        self.microphone, self.output = Microphone(params), Output(params, self.speaker)
        settings = OpenAILLMService.Settings(model="smollm2", system_instruction=system)
        self.tts = NotedVoice(**served, settings=OpenAITTSService.Settings(model="smollm2"))
        stt = OpenAISTTService(**served, settings=OpenAISTTService.Settings(model="smollm2"))
        parts = [
            self.microphone,
            stt,
            pair.user(),
            OpenAILLMService(**served, settings=settings),
            self.tts,
            self.output,
            pair.assistant(),
        ]
        pipeline = PipecatPipeline(parts)
        self.worker = PipelineWorker(pipeline, cancel_on_idle_timeout=False, enable_rtvi=False)
        self.turn_over: float | None = None

        async def over(*_: object) -> None:
            if self.turn_over is None or not self.tts.said:
                self.turn_over = anyio.current_time()

        pair.user().add_event_handler("on_user_turn_stopped", over)
        self.begin()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Run the pipeline."""
        started = asyncio.Event()

        async def begun(*_: object) -> None:
            started.set()

        self.worker.add_event_handler("on_pipeline_started", begun)
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(self.worker)
        task = asyncio.create_task(runner.run())
        await started.wait()
        try:
            yield
        finally:
            await self.worker.queue_frame(EndFrame())
            await task

    def begin(self) -> None:
        """Before a new conversation."""
        self.tts.begin()
        self.output.stopped = self.turn_over = None

    @property
    def stopped(self) -> float | None:
        """See `Arm`."""
        return self.output.stopped

    @property
    def steps(self) -> dict[str, float]:
        """See `Arm`."""
        found = {
            "turn over": self.turn_over,
            "first sentence": self.tts.first_text,
            "first speech": self.tts.first_speech,
        }
        return {name: at for name, at in found.items() if at is not None}

    @property
    def begins(self) -> str:
        """See `Arm`."""
        return self.tts.said[0] if self.tts.said else ""

    @property
    def written(self) -> str:
        """See `Arm`."""
        return " ".join(self.tts.said)

    async def hear(self, pcm: bytes) -> None:
        """See `Arm`."""
        await self.microphone.push_audio_frame(InputAudioRawFrame(pcm, MIC, 1))

    async def kept(self) -> str:
        """See `Arm`."""
        messages: list[Any] = self.context.get_messages()
        said = messages[1] if len(messages) > 1 else {"role": "", "content": ""}
        return str(said["content"]) if said["role"] == "assistant" else ""

    async def words(self, played: bytes) -> tuple[list[Word], bool]:
        """See `Arm`: of all texts that were played, wholly or in part."""
        found: list[Word] = []
        pcm = bytearray()
        for text in self.tts.said:
            if len(pcm) >= len(played):
                break
            whole, marks = await spoken(self.voice, text)
            begun = len(pcm) // 2
            for word in words_of(text, marks):
                found.append(Word(word.text, begun + word.start, begun + word.end))
            pcm += whole
        return found, pcm.startswith(played)

    async def forget(self) -> None:
        """See `Arm`."""
        await self.worker.queue_frame(InterruptionFrame())
        await rest(self)
        await self.worker.queue_frame(InterruptionFrame())
        await anyio.sleep(0.1)
        self.context.set_messages([])
        self.speaker.pieces.clear()
        self.begin()


async def spoken(voice: Any, text: str) -> tuple[bytes, list[Any]]:
    """What `/v1/audio/speech` gives for a text, with the marks of its words."""

    async def chunks() -> AsyncIterator[Chunk]:
        chars = Span(0, len(text))
        yield Chunk(text, (0,), Span(0, 1), chars, ends=(len(text),), finish_reason="stop")

    pcm, marks = bytearray(), list[Any]()
    pipeline = Pipeline([[VoiceStage(voice)]], head=SegmentStage(lookahead=True))
    async with pipeline.run(chunks()) as run:
        async for event in run:
            if isinstance(event.item, Speech):
                pcm += event.item.pcm
                marks += [mark for mark in event.item.marks if mark.kind == "word"]
    return bytes(pcm), marks


def words_of(text: str, marks: Sequence[Any]) -> list[Word]:
    """The written words that were spoken, each with the samples of all that is said for it."""
    found: list[Word] = []
    for match in _WORD.finditer(text):
        mine = [m.samples for m in marks if match.start() <= m.chars.start < match.end()]
        if mine:
            start, end = min(s.start for s in mine), max(s.end for s in mine)
            found.append(Word(match[0], start, end))
    return found


def plain(text: str) -> str:
    """A word's letters and digits."""
    return re.sub(r"\W", "", text).casefold()


@dataclass(slots=True)
class Turn:
    """What was measured of one question to one arm; seconds count from its beginning."""

    arm: str
    kind: str
    asked: str
    first_ms: float | None = None  # from the question's end to the first audible sample
    early: bool = False  # something was audible before the question's end
    steps_ms: dict[str, float] = field(default_factory=dict)
    begins: str = ""  # the first piece of text that was spoken
    silence_ms: float | None = None  # from the interruption's begin to the last audible sample
    played_s: float = 0.0
    heard: str = ""  # words that had ended when the sound stopped
    kept: str = ""  # of the reply in the history
    unheard: int = 0
    lost: int = 0
    heard_words: int = 0
    judged: bool = False
    missed: str = ""  # why an interruption wasn't measured


class Mouth:
    """Feeds an arm at the pace of real time: silence, and what is to be said."""

    def __init__(self, arm: Arm) -> None:
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


async def rest(arm: Arm) -> None:
    """Let an arm hear silence for a while."""
    mouth = Mouth(arm)
    for _ in range(int(REST_S / PIECE_S)):
        await mouth.step()


async def ask(arm: Arm, asked: str, pcm: bytes, breaks: Breaks) -> Turn:
    """Ask a question aloud, perhaps interrupt the answer after some seconds, and measure both."""
    turn = Turn(arm.name, "interruption" if breaks else "question", asked)
    mouth = Mouth(arm)
    mouth.waiting += bytes(2 * int(BEFORE_S * MIC))
    _, ended = mouth.say(pcm)
    first: float | None = None
    while first is None and anyio.current_time() < ended + WAIT_S:
        await mouth.step()
        first = arm.speaker.first(ended)
    turn.early = arm.speaker.last(ended) is not None
    if first is not None:
        turn.first_ms = (first - ended) * 1e3
        turn.begins = arm.begins
        turn.steps_ms = {name: (at - ended) * 1e3 for name, at in arm.steps.items()}
        if breaks is not None:
            await interrupt(arm, mouth, turn, first + breaks[0], breaks[1])
    await arm.forget()
    return turn


async def interrupt(arm: Arm, mouth: Mouth, turn: Turn, due: float, pcm: bytes) -> None:
    """Speak into a reply at a time, or behind a gap there, and measure until it is silent."""
    while mouth.at < due or (arm.speaker.until < mouth.at and mouth.at < due + GAP_S):
        await mouth.step()
    if arm.speaker.until < mouth.at:
        turn.missed = f"the reply was over: {arm.written}"
        return
    begun, ended = mouth.say(pcm)
    while arm.stopped is None and anyio.current_time() < begun + WAIT_S:
        await mouth.step()
    if arm.stopped is None:
        turn.missed = "it went on"
        return
    stopped = arm.stopped
    while mouth.at < max(ended, stopped) + 0.3:  # what is late is still counted
        await mouth.step()
    last = arm.speaker.last(stopped)
    turn.silence_ms = max(0.0, ((last or begun) - begun) * 1e3)
    sound = arm.speaker.played(stopped)
    played = len(sound) // 2
    turn.played_s = played / OUT
    turn.kept = await arm.kept()
    words, followed = await arm.words(sound)
    kept = [plain(word) for word in turn.kept.split() if plain(word)]
    said = [plain(word.text) for word in words if plain(word.text)]
    words = [word for word in words if plain(word.text)]
    over = sum(word.end <= played for word in words)
    turn.heard, turn.heard_words = " ".join(word.text for word in words[:over]), over
    turn.unheard = max(0, len(kept) - sum(word.start < played for word in words))
    turn.lost = max(0, over - len(kept))
    together = min(len(kept), len(said))
    turn.judged = followed and kept[:together] == said[:together]
    while arm.speaker.first(ended) is None and anyio.current_time() < ended + WAIT_S:
        await mouth.step()  # the interruption is answered, too, before all is forgotten


async def say(voice: Any, text: str) -> bytes:
    """A user's voice, at the microphone's rate."""
    pcm, _ = await spoken(voice, text)
    resampler = Resampler(OUT, MIC)
    return resampler.push(pcm) + resampler.flush()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def served() -> AsyncGenerator[str, None]:
    """`specstream serve --target smollm2`; gives its address."""
    port = free_port()
    command = [sys.executable, "-m", "specstream", "serve", "--target", "smollm2"]
    process = await anyio.open_process(
        [*command, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=None
    )
    try:
        base = f"http://127.0.0.1:{port}/v1"
        with anyio.fail_after(180):
            while not await anyio.to_thread.run_sync(answers, f"{base}/models"):
                if process.returncode is not None:
                    raise SystemExit("the server didn't start")
                await anyio.sleep(0.5)
        yield base
    finally:
        process.terminate()
        with anyio.CancelScope(shield=True):
            await process.wait()


def answers(url: str) -> bool:
    """Whether a server answers."""
    with suppress(OSError), urllib.request.urlopen(url, timeout=5):
        return True
    return False


def share(values: Sequence[float], part: float) -> float:
    """The value that so much of the values don't exceed, between neighbours by proportion."""
    ordered = sorted(values)
    at = part * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


HEAD = (
    "| arm | first audible sample p50 (ms) | p90 | N | interruption to silence p50 (ms) | p90 | N"
    " | unheard words kept | heard words lost | heard words |"
)


def rows(turns: Sequence[Turn]) -> list[str]:
    """The table."""
    lines = [HEAD, "|---" * (HEAD.count("|") - 1) + "|"]
    for name in dict.fromkeys(turn.arm for turn in turns):
        mine = [turn for turn in turns if turn.arm == name]
        waits = [turn.first_ms for turn in mine if turn.first_ms is not None]
        stops = [turn.silence_ms for turn in mine if turn.silence_ms is not None]
        judged = [turn for turn in mine if turn.judged]
        cells = [name]
        for values, asked in (
            (waits, len(mine)),
            (stops, sum(turn.kind == "interruption" for turn in mine)),
        ):
            cells += [f"{share(values, p):.0f}" if values else "–" for p in (0.5, 0.9)]
            cells.append(f"{len(values)} of {asked}")
        cells.append(str(sum(turn.unheard for turn in judged)))
        cells.append(str(sum(turn.lost for turn in judged)))
        heard = sum(turn.heard_words for turn in judged)
        cells.append(f"{heard} in {len(judged)} replies")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def steps(turns: Sequence[Turn]) -> list[str]:
    """Where the wait goes: medians from the question's end to each step."""
    names = ("turn over", "first sentence", "first speech")
    lines = [f"| arm | {' | '.join(names)} | first audible sample |", "|---|---|---|---|---|"]
    for arm in dict.fromkeys(turn.arm for turn in turns):
        mine = [turn for turn in turns if turn.arm == arm and turn.first_ms is not None]
        cells = []
        for name in names:
            found = [turn.steps_ms[name] for turn in mine if name in turn.steps_ms]
            cells.append(f"{statistics.median(found):.0f}" if found else "–")
        whole = statistics.median([turn.first_ms or 0.0 for turn in mine]) if mine else 0.0
        lines.append(f"| {arm} | {' | '.join(cells)} | {whole:.0f} |")
    return lines


async def arms_of(stack: AsyncExitStack, voice: Any) -> list[Arm]:
    """Open all arms; Pipecat has the system message of the agent."""
    base = await stack.enter_async_context(served())
    engine = await stack.enter_async_context(Engine.load("smollm2"))
    tasks = await stack.enter_async_context(asyncio.TaskGroup())

    async def agent(name: str, turns: str, listening: ListenerSettings | None) -> AgentArm:
        speaker = Loudspeaker()
        made = Agent(
            engine=engine,
            ears="whisper",
            turns=turns,
            listening=listening,
            sample_rate=MIC,
            play=Playout(Sink(speaker), audible=False),  # the microphone doesn't hear it
        )
        await stack.enter_async_context(made)
        arm = AgentArm(name, made, speaker)
        stack.callback(tasks.create_task(arm.follow()).cancel)
        return arm

    async def pipecat(name: str, strategies: UserTurnStrategies | None) -> PipecatArm:
        arm = PipecatArm(name, base, system, strategies, voice)
        await stack.enter_async_context(arm.running())
        return arm

    first = await agent("Agent, defaults", "auto", None)
    system = str(first.agent.messages[0]["content"])
    equal = ListenerSettings(silence_ms=SILENCE_S * 1e3, by_words=False)
    stop = SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=SILENCE_S - VAD_STOP_S)
    return [
        first,
        await pipecat("Pipecat, defaults", None),
        await agent("Agent, 500 ms of silence", "silero", equal),
        await pipecat("Pipecat, 500 ms of silence", UserTurnStrategies(stop=[stop])),
    ]


async def measure(args: argparse.Namespace) -> list[Turn]:
    """Ask all questions of all arms, the interrupted ones spread among the others."""
    voice = load_adapter("voice", "hibari")
    plan: list[tuple[str, Breaks]] = [(ALOUD[n % len(ALOUD)], None) for n in range(args.questions)]
    for n in range(args.interruptions):
        breaks = AFTER_S[n % len(AFTER_S)], await say(voice, BREAKS[n % len(BREAKS)])
        at = len(plan) * (n + 1) // (args.interruptions + 1)
        plan.insert(at, (LONG[n % len(LONG)], breaks))
    turns: list[Turn] = []
    async with AsyncExitStack() as stack:
        arms = await arms_of(stack, voice)
        for arm in arms:
            await rest(arm)
            await ask(arm, FIRST, await say(voice, FIRST), None)  # to warm everything up
        for number, (asked, breaks_at) in enumerate(plan):
            pcm = await say(voice, asked)
            first = number % len(arms)
            for arm in [*arms[first:], *arms[:first]]:
                turns.append(await ask(arm, asked, pcm, breaks_at))
                tell(json.dumps(asdict(turns[-1])), sys.stderr)
    return turns


def tell(text: str, stream: TextIO) -> None:
    """Write a line at once."""
    stream.write(text + "\n")
    stream.flush()


def main() -> None:
    """Measure, print the tables, and write the JSON."""
    parser = argparse.ArgumentParser(description="One voice turn, beside Pipecat's own services.")
    parser.add_argument("--questions", type=int, default=16, help="default: 16")
    parser.add_argument("--interruptions", type=int, default=10, help="default: 10")
    parser.add_argument("--out", type=Path, default=Path("bench-out"))
    args = parser.parse_args()
    logger.remove()
    logger.add(sys.stderr, level="ERROR")
    began, load = time.time(), os.getloadavg()[0]
    turns = asyncio.run(measure(args))
    names = ("pipecat-ai", "specstream-sdk", "hibari-tts", "faster-whisper", "torch", "openai")
    document = {
        "machine": {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        },
        "versions": {name: version(name) for name in names},
        "load": [load, os.getloadavg()[1]],  # before, and at the end
        "minutes": (time.time() - began) / 60,
        "turns": [asdict(turn) for turn in turns],
    }
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "turn-beside-pipecat.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    tell("\n".join([*rows(turns), "", *steps(turns)]), sys.stdout)
    tell(f"written to {path}", sys.stderr)


if __name__ == "__main__":
    main()
