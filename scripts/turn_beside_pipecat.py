"""What `scripts/turn-beside-pipecat` runs, in an environment that has Pipecat.

Five arms hear the same audio in pieces of 20 ms, each handed over when a microphone would have it, and
play into the same loudspeaker: `Agent` and Pipecat, each with its own defaults, and each with 500 ms of
silence as the only sign of a turn's end. Pipecat is given the pipeline of its guides:
`OpenAISTTService`, `OpenAILLMService` and `OpenAITTSService`, all at `specstream serve`, Silero in the
user aggregator and, in its defaults, Smart Turn; in the fifth arm, instead of `OpenAITTSService`, the
same voice in this process as a service that times its words. Arms take turns, and the first of each
round changes. Every question begins a new conversation.

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
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import anyio
from loguru import logger
from pipecat.turns.user_stop import SpeechTimeoutUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies
from turn_arms import MIC, OUT, AgentArm, Loudspeaker, QuestionFeed, Sink, TurnArm, plain, rest, spoken
from turn_pipecat import PipecatArm

from specstream import Agent, Engine
from specstream.bench.questions import ALOUD, FIRST
from specstream.engine.cores import cpu_name
from specstream.listening import ListenerSettings
from specstream.listening.resampler import Resampler
from specstream.playback import Playout
from specstream.stages import load_adapter

BEFORE_S = 0.6  # of silence before a question
SILENCE_S = 0.5  # that ends a turn in the arms with equal silences
VAD_STOP_S = 0.2  # of which Pipecat's voice detection takes so much
WAIT_S = 20.0  # for an answer, or for silence
GAP_S = 3.0  # a longer silence is a reply's end
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
Breaks = tuple[float, bytes] | None
"""Seconds from a reply's first sound to an interruption, and what is said."""


@dataclass(slots=True)
class MeasuredTurn:
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


async def ask(arm: TurnArm, asked: str, pcm: bytes, breaks: Breaks) -> MeasuredTurn:
    """Ask a question aloud, perhaps interrupt the answer after some seconds, and measure both."""
    turn = MeasuredTurn(arm.name, "interruption" if breaks else "question", asked)
    mouth = QuestionFeed(arm)
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


async def interrupt(
    arm: TurnArm, mouth: QuestionFeed, turn: MeasuredTurn, due: float, pcm: bytes
) -> None:
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


def rows(turns: Sequence[MeasuredTurn]) -> list[str]:
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


def steps(turns: Sequence[MeasuredTurn]) -> list[str]:
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


async def arms_of(stack: AsyncExitStack, voice: Any) -> list[TurnArm]:
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

    async def pipecat(
        name: str, strategies: UserTurnStrategies | None = None, timed: bool = False
    ) -> PipecatArm:
        arm = PipecatArm(name, base, system, strategies, voice, timed)
        await stack.enter_async_context(arm.running())
        return arm

    first = await agent("Agent, defaults", "auto", None)
    system = str(first.agent.messages[0]["content"])
    equal = ListenerSettings(silence_ms=SILENCE_S * 1e3, by_words=False)
    stop = SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=SILENCE_S - VAD_STOP_S)
    return [
        first,
        await pipecat("Pipecat, defaults"),
        await pipecat("Pipecat, defaults, voice with word times", timed=True),
        await agent("Agent, 500 ms of silence", "silero", equal),
        await pipecat("Pipecat, 500 ms of silence", UserTurnStrategies(stop=[stop])),
    ]


async def measure(args: argparse.Namespace) -> list[MeasuredTurn]:
    """Ask all questions of all arms, the interrupted ones spread among the others."""
    voice = load_adapter("voice", "hibari")
    plan: list[tuple[str, Breaks]] = [(ALOUD[n % len(ALOUD)], None) for n in range(args.questions)]
    for n in range(args.interruptions):
        breaks = AFTER_S[n % len(AFTER_S)], await say(voice, BREAKS[n % len(BREAKS)])
        at = len(plan) * (n + 1) // (args.interruptions + 1)
        plan.insert(at, (LONG[n % len(LONG)], breaks))
    turns: list[MeasuredTurn] = []
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
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "python": platform.python_version()},
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
