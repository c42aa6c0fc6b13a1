"""``specstream trace``: explain a moment of the speech by its phrase, tokens, rounds and times."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path

from specstream.bench.plots import Bar, Row, can_plot, draw_timeline
from specstream.checks import writing
from specstream.commands.shared.output import note, print_json
from specstream.errors import ConfigError
from specstream.trace import SampleOrigin, Trace, read_trace

__all__ = ["run"]

_MOMENT = re.compile(r"(\d+(?:\.\d+)?)(s|ms|)")
_SUFFIXES = (".svg", ".png", ".pdf")


async def run(args: argparse.Namespace) -> None:
    """Print the origin of one moment of the speech, and draw the turn if asked to."""
    seconds = _seconds(args.at)
    picture = None if args.picture is None else check_picture(Path(args.picture))
    trace = read_trace(args.file)
    story = trace.at(math.floor(seconds * trace.rate + 1e-6))
    print("\n".join(story.lines()), flush=True)
    if picture is not None:
        title = f"{args.file}: {story.at_ms / 1e3:.3f} s, {story.word or 'a pause'}"
        with writing(picture):
            draw_timeline(_rows(trace, story), picture, title, line_ms=story.times["heard"])
        note(f"written to {picture}")
    if args.json:
        print_json(story.to_dict())


def check_picture(path: Path) -> Path:
    """Return the path, if a picture of its kind can be made here.

    Raises:
        ConfigError: the suffix is unknown, or matplotlib is not installed.
    """
    if path.suffix not in _SUFFIXES:
        raise ConfigError(f"{path}: a picture is one of {', '.join(_SUFFIXES)}")
    if not can_plot():
        raise ConfigError("pictures need matplotlib: pip install 'specstream-sdk[bench]'")
    return path


def _seconds(text: str) -> float:
    found = _MOMENT.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"--at is a time such as 3.2s or 450ms, not {text!r:.40}")
    return float(found[1]) / (1e3 if found[2] == "ms" else 1)


def _rows(trace: Trace, story: SampleOrigin) -> list[Row]:
    """Timeline rows: rounds, phrases and voice of the whole turn, and the steps of one sample."""
    rounds: list[Bar] = []
    phrases: list[Bar] = []
    voice: list[Bar] = []
    before = cut = 0.0
    for entry in trace.events:
        at = float(entry.get("logged_ms", entry["t_ms"]))
        if entry["type"] == "Chunk" and entry["token_ids"]:
            kind = "round with accepted drafts" if entry["accepted"] else "round without"
            rounds.append(Bar(kind, before, at))
            before = at
        elif entry["type"] == "Phrase":
            phrases.append(Bar("phrase", cut, at, entry["text"].strip()))
            cut = at
        elif entry["type"] == "Speech" and entry["samples"][0] < entry["samples"][1]:
            begun = max(cut, voice[-1].end_ms) if voice else cut
            voice.append(Bar("voice", min(begun, at), at))
    steps, start = [], 0.0
    for name, ms in story.times.items():
        steps.append(Bar(f"until: {name}", start, max(start, ms)))
        start = max(start, ms)
    rows = [("rounds", rounds), ("phrases", phrases), ("voice", voice), ("this sample", steps)]
    return [Row(label, bars) for label, bars in rows]
