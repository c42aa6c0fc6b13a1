"""``specstream bench --conversation``: measure waits, word errors and interruptions of spoken turns."""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from specstream.agent.agent import Agent
from specstream.bench.load import conversation as talk
from specstream.bench.load.conversation import HeardAt, SoakFigures, converse
from specstream.bench.machine import resident_mb
from specstream.bench.questions import ALOUD, FIRST, WRITTEN
from specstream.commands.bench.plan import bench_config
from specstream.commands.shared.chain import load_voice
from specstream.commands.shared.common import params_of
from specstream.commands.shared.output import note, print_json, write_json
from specstream.commands.shared.progress import Progress
from specstream.engine.engine import Engine
from specstream.errors import ConfigError
from specstream.listening.ears import Ears
from specstream.playback.playout import Playout
from specstream.stages.adapters import load_adapter
from specstream.types import SamplingParams

__all__ = ["run_conversation"]

_TOKENS = 48  # longest reply, without --max-tokens
_INTERRUPTIONS = 5  # questions whose replies are interrupted
_MOST_MINUTES = 24 * 60


async def run_conversation(args: argparse.Namespace) -> None:
    """Measure a conversation with the best voice and ears that are installed, and print the figures.

    Cancelling it prints nothing.

    Raises:
        ConfigError: a bad option.
        AdapterUnavailable: there is no recogniser or turn detector here.
        ModelError: the pair can't be loaded.
        OutputError: the results can't be written.
    """
    if args.limit is not None and args.limit < 1:
        raise ConfigError("--limit must be at least 1")
    if args.minutes is not None and not 0 < args.minutes <= _MOST_MINUTES:
        raise ConfigError(f"--minutes must be above 0 and at most {_MOST_MINUTES}")
    config = bench_config(args)
    turns = min(args.limit or len(WRITTEN), len(WRITTEN))
    params = params_of(args)
    if args.max_tokens is None:
        params = replace(params, max_tokens=_TOKENS)
    note(f"loading the models ({config.dtype}), voice and ears")
    document: dict[str, Any] = {"target": config.target or "bundled", "dtype": config.dtype}
    async with Engine(config) as engine:
        if args.minutes is not None:
            document |= (await _soak(engine, params, args.minutes)).to_dict()
            each, lines = {}, _soak_lines
        else:
            figures = await _measure(engine, params, turns)
            document |= figures.to_dict()
            each, lines = {"each": _turns(figures)}, _lines
    write_json(Path(args.out, "conversation.json"), document | each)
    print("\n".join(lines(document)), flush=True)
    note(f"written to {args.out}/conversation.json")
    if args.json:
        print_json(document)


async def _measure(engine: Engine, params: SamplingParams, turns: int) -> talk.ConversationFigures:
    figures, progress = talk.ConversationFigures(), Progress(sys.stderr)
    memory = figures.memory_mb
    memory["models"] = resident_mb()
    voice, ears = load_voice("auto"), _ears()
    rate = voice.capabilities.sample_rate
    memory["voice and ears"] = resident_mb()
    async with Agent(
        engine=engine, voice=voice, ears=ears, sample_rate=rate, play=Playout(paced=False), params=params
    ) as agent:
        tell = progress.phase("turn")
        await talk.ask_in_writing(agent, FIRST)  # a warm-up, not counted
        for at, (written, aloud) in enumerate(zip(WRITTEN[:turns], ALOUD, strict=False)):
            figures.written.append(await talk.ask_in_writing(agent, written))
            pcm = await talk.said(voice, aloud)
            figures.aloud.append(await talk.ask_aloud(agent, aloud, pcm, rate))
            tell(at + 1, turns)
            if at == min(2, turns - 1):
                memory["a few turns"] = resident_mb()
        progress.clear()
        memory["all turns"] = resident_mb()
        for turn in figures.aloud:
            figures.questions.add(turn.asked, turn.heard)
        for turn in figures.written:
            heard = await talk.heard_as(ears.recognizer, bytes(turn.pcm), turn.sample_rate)
            figures.answers.add(turn.spoken, heard)
        memory["answers recognised"] = resident_mb()
    figures.silence_ms = await talk.interrupted(
        lambda play: Agent(engine=engine, voice=load_voice("auto"), play=play, params=params),
        WRITTEN[: min(turns, _INTERRUPTIONS)],
    )
    memory["the end"] = resident_mb()
    return figures


async def _soak(engine: Engine, params: SamplingParams, minutes: float) -> SoakFigures:
    progress, memory = Progress(sys.stderr), {"models": resident_mb()}
    voice = load_voice("auto")
    memory["voice"] = resident_mb()
    ears, heard = _ears(), HeardAt()
    memory["ears"] = resident_mb()
    async with Agent(
        engine=engine,
        voice=voice,
        avatar="viseme",
        ears=ears,
        sample_rate=voice.capabilities.sample_rate,
        play=Playout(heard, audible=False),
        params=params,
    ) as agent:
        tell = progress.phase("minute")
        figures = await converse(
            agent, heard, voice, minutes * 60, lambda s: tell(int(s // 60), math.ceil(minutes))
        )
    progress.clear()
    figures.memory_mb = memory | figures.memory_mb
    return figures


def _ears() -> Ears:
    return Ears(load_adapter("recognizer", "whisper"), load_adapter("turns", "silero"))


def _turns(figures: talk.ConversationFigures) -> list[dict[str, Any]]:
    return [
        {
            "kind": kind,
            "asked": turn.asked,
            "heard": turn.heard,
            "reply": turn.reply,
            "parts_ms": {name: round(ms, 1) for name, ms in turn.parts.items()},
        }
        for kind, turns in (("written", figures.written), ("aloud", figures.aloud))
        for turn in turns
    ]


def _lines(document: dict[str, Any]) -> list[str]:
    lines = [f"{document['target']}, {document['dtype']}; medians"]
    for kind, what in (("written", "typed question"), ("aloud", "spoken question, from its end")):
        waits = document[kind]
        lines.append(
            f"{what} to first audible sample: {waits['first_audible_ms']:.0f} ms "
            f"(p95 {waits['p95_ms']:.0f}, {waits['turns']} turns)"
        )
        lines += [f"  {name:<26}{ms:>7.0f} ms" for name, ms in waits["parts_ms"].items()]
    for kind, errors in document["word_error_rate"].items():
        share = f"{errors['errors']} of {errors['words']}"
        lines.append(f"word errors of the {kind}: {100 * errors['rate']:.1f} % ({share})")
    silence, count = document["interruption_to_silence_ms"], document["interruptions"]
    told = "no reply was long enough" if silence is None else f"{silence:.0f} ms ({count} replies)"
    lines.append(f"interruption to silence: {told}")
    return [*lines, *_memory_lines(document)]


def _soak_lines(document: dict[str, Any]) -> list[str]:
    waits = document["first_audible_ms"]
    return [
        f"{document['target']}, {document['dtype']}: {document['minutes']:.1f} minutes, "
        f"{document['turns']} turns",
        f"question to first audible sample: {waits['first_turns']:.0f} ms in the first ten turns, "
        f"{waits['last_turns']:.0f} in the last ten",
        f"largest delay of a cue behind its sound: {document['largest_cue_delay_ms']:.0f} ms; "
        f"most silence in one reply: {document['longest_gaps_ms']:.0f} ms",
        *_memory_lines(document),
    ]


def _memory_lines(document: dict[str, Any]) -> list[str]:
    memory = document["memory_mb"]
    return ["memory:", *(f"  {name:<26}{mb:>7.0f} MB" for name, mb in memory.items())]
