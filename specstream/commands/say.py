"""``specstream say``: run the whole chain, from a prompt to files of speech, cues and scene prompts."""

from __future__ import annotations

import argparse
import secrets
import statistics
import sys
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from specstream.checks import counted
from specstream.commands.provenance import SpeechSigner
from specstream.commands.shared.chain import delivery_of, names_of, open_pipeline
from specstream.commands.shared.common import engine_of, messages_of, params_of
from specstream.commands.shared.output import RunPrinter, note, print_json, shades, tell_report
from specstream.commands.shared.progress import loaded
from specstream.commands.shared.recorder import (
    RecordedTurn,
    Recorder,
    SpokenRecord,
    run_turn,
    speak_text,
)
from specstream.engine.engine import Engine
from specstream.errors import ConfigError
from specstream.stages.pipeline import Pipeline

__all__ = ["run"]

_FOR_MODELS = ("compare", "target", "draft", "proposer", "system")  # of no use with --verbatim
_REPEATS = 3  # compared turns with and without speculation, in alternation


async def run(args: argparse.Namespace) -> None:
    """Speak one reply; with ``--compare``, also measure it without speculation.

    With ``--verbatim`` the text itself is spoken, and no model is loaded.
    """
    if not args.out.strip():
        raise ConfigError("--out must name a folder")
    if args.out.endswith(".wav"):
        raise ConfigError(f"--out names a folder for speech.wav and more, not the file {args.out}")
    signer = SpeechSigner.of(args)
    if args.verbatim:
        await _read_out(args, signer)
        return
    engine, params, messages = engine_of(args), params_of(args), messages_of(args)
    if args.compare and params.seed is None:
        params = replace(params, seed=secrets.randbits(32))  # the same for all compared turns
    out = Path(args.out)
    printer = RunPrinter(sys.stdout, show_runs=args.show_runs or shades(sys.stdout), directions=False)
    with Recorder(out, printer, signer) as recorder:
        async with _chain(args, engine, signer) as pipeline, loaded(engine):
            params = replace(params_of(args, engine.manner.params), seed=params.seed)
            if args.system is None and engine.manner.system:
                messages.insert(0, {"role": "system", "content": engine.manner.system})
            try:
                turn = await run_turn(engine, pipeline, messages, params, recorder.add)
            finally:
                printer.end()
            recorder.turn = turn
            compared = None
            if args.compare:
                without, own = [], []
                asked = (engine, pipeline, messages, params)
                for _ in range(_REPEATS):
                    without.append(await run_turn(*asked, speculate=False))
                    own.append(await run_turn(*asked))
                compared = _compare(own, without)
    lines = [*tell_report(turn.report, params.max_tokens), *_tell(turn, recorder, out, compared)]
    note("\n".join(lines))
    if args.json:
        values = turn.report.to_dict() | _figures(turn, recorder, out)
        if compared is not None:
            values["without_speculation"] = compared
        print_json(values)
    if turn.failures:
        raise turn.failures[0]
    printer.check()


def _chain(
    args: argparse.Namespace, engine: Engine | None, signer: SpeechSigner | None
) -> AbstractAsyncContextManager[Pipeline]:
    """The pipeline of the options; the signer learns what its speech is made by."""
    names = None if signer is None else signer.made_by
    if names is not None and engine is not None:
        names["model"] = names_of(engine.config)["target"]
    parts = (args.voice, args.avatar, args.prompts)
    return open_pipeline(engine, *parts, mark=args.mark, names=names, **delivery_of(args))


async def _read_out(args: argparse.Namespace, signer: SpeechSigner | None) -> None:
    """Speak the text that was given, as a reply of that text would be spoken."""
    for name in _FOR_MODELS:
        if getattr(args, name):
            raise ConfigError(f"--verbatim loads no model: leave out --{name}")
    text, out = str(messages_of(args)[-1]["content"]), Path(args.out)
    printer = RunPrinter(sys.stdout, show_runs=False, directions=False)
    with Recorder(out, printer, signer) as recorder:
        async with _chain(args, None, signer) as pipeline:
            try:
                recorder.turn = spoken = await speak_text(text, pipeline, recorder.add)
            finally:
                printer.end()
    note("\n".join(_tell(spoken, recorder, out, None)))
    if args.json:
        print_json(_figures(spoken, recorder, out))
    if spoken.failures:
        raise spoken.failures[0]
    printer.check()


def _figures(turn: SpokenRecord, recorder: Recorder, out: Path) -> dict[str, Any]:
    return {
        "ttfa_ms": _rounded(turn.ttfa_ms),
        "first_phrase_ms": _rounded(turn.first_phrase_ms),
        "audio_seconds": round(turn.audio_seconds, 3),
        "phrases": recorder.counts["Phrase"],
        "cues": recorder.counts["AvatarCue"],
        "prompts": recorder.counts["ScenePrompt"],
        "out": str(out),
    }


def _compare(own: list[RecordedTurn], without: list[RecordedTurn]) -> dict[str, Any]:
    def medians(turns: list[RecordedTurn]) -> dict[str, Any]:
        reports = [turn.report for turn in turns]
        heard = [turn.ttfa_ms for turn in turns if turn.ttfa_ms is not None]
        return {
            "tokens_per_second": round(statistics.median(r.tokens_per_second for r in reports), 2),
            "ttft_ms": _rounded(statistics.median(r.ttft_ms for r in reports)),
            "ttfa_ms": _rounded(statistics.median(heard) if heard else None),
            "total_ms": _rounded(statistics.median(r.total_ms for r in reports)),
        }

    with_it, plainly = medians(own), medians(without)
    pairs = zip(own, without, strict=True)
    return {
        "repeats": len(own),
        "with": with_it,
        "without": plainly,
        "speedup": round(with_it["tokens_per_second"] / plainly["tokens_per_second"], 3),
        "same_tokens": all(a.report.token_ids == b.report.token_ids for a, b in pairs),
    }


def _tell(turn: SpokenRecord, made: Recorder, out: Path, compared: dict[str, Any] | None) -> list[str]:
    lines: list[str] = []
    phrases = counted(made.counts["Phrase"], "phrase")
    if turn.ttfa_ms is not None:
        lines.append(
            f"first audible sample after {turn.ttfa_ms:.0f} ms; {turn.audio_seconds:.1f} s of speech, "
            f"{phrases}, {counted(made.counts['AvatarCue'], 'avatar cue')}, "
            f"{counted(made.counts['ScenePrompt'], 'scene prompt')}"
        )
    elif made.counts["Phrase"] and not turn.failures:
        lines.append(f"no speech: the voice made no sound of {phrases}")
    if compared is not None:
        own, other = compared["with"], compared["without"]
        same = "the same tokens" if compared["same_tokens"] else "other tokens"
        heard, waits = "", (other["ttfa_ms"], own["ttfa_ms"])
        if None not in waits:
            heard = ", first audible sample after {:.0f} ms instead of {:.0f}".format(*waits)
        lines.append(
            f"without speculation: {same}, {other['tokens_per_second']:.0f} tokens a second instead "
            f"of {own['tokens_per_second']:.0f} ({compared['speedup']:.2f}x){heard} "
            f"(medians of {compared['repeats']} turns each, in alternation)"
        )
    lines.append(f"written to {out}/: {', '.join(made.written)}")
    return lines


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
