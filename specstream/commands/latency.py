"""``specstream latency``: run a scenario's conversation and report the waits of its turns by part."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anyio import to_thread

from specstream.bench.load.conversation import said
from specstream.bench.plots import Bar, Row, can_plot, draw_timeline
from specstream.checks import writing
from specstream.client.dial import READY_S, shown
from specstream.commands.shared.chain import load_voice
from specstream.commands.shared.output import note, print_json, write_json
from specstream.commands.shared.progress import Progress
from specstream.commands.shared.serving import KEY_VARIABLE
from specstream.errors import ConfigError
from specstream.listening.resampler import Resampler
from specstream.realtime.wire import SAMPLE_RATE
from specstream.stages.interfaces import SpeechSynthesizer
from specstream.testing.conversation import run_live, run_scenario
from specstream.testing.latency import LatencyReport, TurnLatency
from specstream.testing.loop import run_virtual
from specstream.testing.scenario import Scenario, read_scenario

__all__ = ["run"]

_EVERY_S = 10.0  # between two lines where stderr is no terminal
_SHOWN = {"p50": 50, "p95": 95, "slowest": 100}  # turns in the picture, by percentile


async def run(args: argparse.Namespace) -> None:
    """Run the scenario, print the report and write it to ``--out``; tell on stderr how far it is."""
    if args.url is None and args.voice is not None:
        raise ConfigError("--voice speaks to a server: name its address, or leave it out")
    scenario = read_scenario(args.scenario)
    progress = Progress(sys.stderr, every=_EVERY_S)
    try:
        if args.url is None:
            tell = progress.phase("turn")
            # In another thread: virtual time needs its own event loop, and this thread's is running.
            work = lambda: run_virtual(run_scenario(scenario, progress=tell))  # noqa: E731
            report = await to_thread.run_sync(work, abandon_on_cancel=True)
        else:
            report = await _with_server(scenario, args.url, args.voice or "auto", progress)
    finally:
        progress.clear()
    print("\n".join(report.lines()), flush=True)
    document = report.to_dict()
    if args.out is not None:
        _write(Path(args.out), report, document)
    if args.json:
        print_json({key: value for key, value in document.items() if key != "each"})


async def _with_server(scenario: Scenario, url: str, name: str, progress: Progress) -> LatencyReport:
    progress.stage(f"loading the voice {name}")
    voice = await to_thread.run_sync(load_voice, name)
    wait = f"a server that is still loading is waited for: {READY_S:.0f} s at most"
    progress.stage(f"connecting to {shown(url)} ({wait})")
    tell: Callable[[int, int], None] | None = None

    def answered(done: int, total: int) -> None:
        nonlocal tell
        tell = tell or progress.phase("turn")  # the time spent waiting says nothing about a turn's
        tell(done, total)

    async def speak(text: str) -> bytes:
        return await _spoken(voice, text)

    try:
        key = os.environ.get(KEY_VARIABLE)
        return await run_live(scenario, url, speak=speak, api_key=key, progress=answered)
    finally:
        await voice.aclose()


async def _spoken(voice: SpeechSynthesizer, text: str) -> bytes:
    """Synthesize a text as PCM at the sample rate of the Realtime protocol."""
    resampler = Resampler(voice.capabilities.sample_rate, SAMPLE_RATE)
    return resampler.push(await said(voice, text)) + resampler.flush()


def _write(folder: Path, report: LatencyReport, document: dict[str, Any]) -> None:
    write_json(folder / "latency.json", document)
    names = ["latency.json"]
    if can_plot():
        title = f"{report.scenario}: {len(report.turns)} turns, {report.clock} clock"
        with writing(folder):
            draw_timeline(_rows(report), folder / "latency.svg", title)
        names.append("latency.svg")
    else:
        note("no picture: matplotlib isn't installed (pip install 'specstream-sdk[bench]')")
    note(f"written to {folder}/: {', '.join(names)}")


def _rows(report: LatencyReport) -> list[Row]:
    """The waterfalls of three turns: median, 95th percentile and slowest."""
    found = [(label, report.slow(percent)) for label, percent in _SHOWN.items()]
    return [Row(f"{label}, {turn.wait_ms:.0f} ms", _bars(turn)) for label, turn in found if turn]


def _bars(turn: TurnLatency) -> list[Bar]:
    bars: list[Bar] = []
    start = 0.0
    for step, ms in turn.parts.items():
        bars.append(Bar(step, start, start + ms))
        start += ms
    return bars
