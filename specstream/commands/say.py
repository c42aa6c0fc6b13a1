"""``specstream say``: the whole chain on this machine, from a prompt to files one can play and read."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from pathlib import Path
from typing import Any, Self, TextIO

import numpy as np
import soundfile

from specstream.commands.chain import Turn, open_pipeline, run_turn
from specstream.commands.common import (
    engine_of,
    messages_of,
    note,
    params_of,
    plain,
    print_json,
    writing,
)
from specstream.commands.show import RunPrinter, tell_report
from specstream.pipeline.stage import Event, StageFailed
from specstream.types import AvatarCue, Chunk, Phrase, ScenePrompt, Speech

__all__ = ["run"]

_REPEATS = 3  # of the comparison, both arms in turn


async def run(args: argparse.Namespace) -> None:
    """Speak one reply; with ``--compare``, tell how it fares without speculation."""
    engine, params, messages = engine_of(args), params_of(args), messages_of(args)
    out = Path(args.out)
    printer = RunPrinter(sys.stdout, show_runs=True)
    chain = open_pipeline(engine, args.voice, args.avatar, args.prompts)
    with Recorder(out, printer) as recorder:
        async with engine, chain as pipeline:
            try:
                turn = await run_turn(engine, pipeline, messages, params, recorder.add)
            finally:
                printer.end()
            recorder.write_trace(turn)
            compared = None
            if args.compare:
                without, own = [], []
                for _ in range(_REPEATS):
                    without.append(
                        await run_turn(engine, pipeline, messages, params, speculate=False)
                    )
                    own.append(await run_turn(engine, pipeline, messages, params))
                compared = _compare(own, without)
    for line in _tell(turn, recorder, out, compared):
        note(line)
    if args.json:
        values = turn.report.to_dict()
        values |= {
            "ttfa_ms": _rounded(turn.ttfa_ms),
            "first_phrase_ms": _rounded(turn.first_phrase_ms),
            "audio_seconds": round(turn.audio_seconds, 3),
            "phrases": recorder.phrases,
            "cues": recorder.cues,
            "prompts": recorder.prompts,
            "out": str(out),
        }
        if compared is not None:
            values["without_speculation"] = compared
        print_json(values)
    if turn.failures:
        raise turn.failures[0]


class Recorder:
    """Writes the results as they come, so that what was made is kept whatever happens next."""

    def __init__(self, out: Path, printer: RunPrinter) -> None:
        self.phrases = self.cues = self.prompts = 0
        self._out = out
        self._printer = printer
        self._trace: list[dict[str, Any]] = []
        self._wave: soundfile.SoundFile | None = None
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
            # A reply without audio must not leave that of the one before it behind.
            (out / "speech.wav").unlink(missing_ok=True)
            (out / "trace.json").unlink(missing_ok=True)
        self._avatar = self._open("avatar.jsonl")
        self._prompts = self._open("prompts.jsonl")

    def _open(self, name: str) -> TextIO:
        path = self._out / name
        with writing(path):
            return open(path, "w", encoding="utf-8", buffering=1)

    def add(self, event: Event) -> None:
        """Take one event of the turn."""
        item = event.item
        entry: dict[str, Any] = {
            "seq": event.seq,
            "t_ms": round(event.t_ms, 3),
            "source": event.source,
            "type": type(item).__name__,
        }
        if isinstance(item, Chunk):
            self._printer.add(item)
        elif isinstance(item, Phrase):
            self.phrases += 1
        elif isinstance(item, Speech):
            self._write_audio(item)
        elif isinstance(item, AvatarCue):
            self.cues += 1
            self._write_line(self._avatar, item)
        elif isinstance(item, ScenePrompt):
            self.prompts += 1
            self._write_line(self._prompts, item)
        if isinstance(item, StageFailed):
            entry["error"] = {"code": item.error.code, "message": str(item.error)}
        elif not isinstance(item, AvatarCue):  # these have a file of their own
            entry |= plain(item)
        self._trace.append(entry)

    def _write_audio(self, speech: Speech) -> None:
        if not speech.pcm:
            return
        path = self._out / "speech.wav"
        with writing(path):
            try:
                if self._wave is None:
                    self._wave = soundfile.SoundFile(
                        path, "w", speech.sample_rate, channels=1, subtype="PCM_16"
                    )
                self._wave.write(np.frombuffer(speech.pcm, dtype="<i2"))
            except soundfile.LibsndfileError as error:
                raise OSError(str(error)) from error

    def _write_line(self, file: TextIO, item: AvatarCue | ScenePrompt) -> None:
        with writing(file.name):
            file.write(json.dumps(plain(item), ensure_ascii=False) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Complete the files."""
        if self._wave is not None:
            self._wave.close()
        self._avatar.close()
        self._prompts.close()

    def write_trace(self, turn: Turn) -> None:
        """Everything that happened, in order, and where each thing came from."""
        report = turn.report.to_dict()
        values = {
            "report": report | {"ttfa_ms": turn.ttfa_ms, "audio_seconds": turn.audio_seconds},
            "machine": {"python": platform.python_version(), "platform": platform.platform()},
            "events": self._trace,
        }
        path = self._out / "trace.json"
        with writing(path):
            path.write_text(json.dumps(values, ensure_ascii=False, indent=1), encoding="utf-8")


def _compare(own: list[Turn], without: list[Turn]) -> dict[str, Any]:
    def medians(turns: list[Turn]) -> dict[str, Any]:
        return {
            "tokens_per_second": round(
                statistics.median(t.report.tokens_per_second for t in turns), 2
            ),
            "ttft_ms": _rounded(statistics.median(t.report.ttft_ms for t in turns)),
            "ttfa_ms": _rounded(statistics.median(t.ttfa_ms or 0.0 for t in turns)),
            "total_ms": _rounded(statistics.median(t.report.total_ms for t in turns)),
        }

    with_it, plainly = medians(own), medians(without)
    return {
        "repeats": len(own),
        "with": with_it,
        "without": plainly,
        "speedup": round(with_it["tokens_per_second"] / plainly["tokens_per_second"], 3),
        "same_tokens": all(
            a.report.token_ids == b.report.token_ids for a, b in zip(own, without, strict=True)
        ),
    }


def _tell(turn: Turn, made: Recorder, out: Path, compared: dict[str, Any] | None) -> list[str]:
    lines = tell_report(turn.report)
    if turn.ttfa_ms is not None:
        lines.append(
            f"first audible sample after {turn.ttfa_ms:.0f} ms; {turn.audio_seconds:.1f} s of speech, "
            f"{made.phrases} phrases, {made.cues} avatar cues, {made.prompts} scene prompts"
        )
    if compared is not None:
        own, other = compared["with"], compared["without"]
        same = "the same tokens" if compared["same_tokens"] else "other tokens"
        lines.append(
            f"without speculation: {same}, {other['tokens_per_second']:.0f} tokens a second instead "
            f"of {own['tokens_per_second']:.0f} ({compared['speedup']:.2f}x), first audible sample "
            f"after {other['ttfa_ms']:.0f} ms instead of {own['ttfa_ms']:.0f} "
            f"(medians of {compared['repeats']} turns each, in alternation)"
        )
    lines.append(f"written to {out}/: speech.wav, avatar.jsonl, prompts.jsonl, trace.json")
    return lines


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
