"""Writing of a turn's output to files while the turn runs."""

from __future__ import annotations

import json
import platform
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self, TextIO

import numpy as np
import soundfile

from specstream.checks import writing
from specstream.commands.provenance import SpeechSigner
from specstream.commands.shared.output import RunPrinter
from specstream.engine.engine import Engine
from specstream.errors import OutputError, SpecstreamError
from specstream.metrics import Report
from specstream.playback.played import PlayedEstimate
from specstream.server.sessions.timings import FirstAudible
from specstream.stages.pipeline import Event, Pipeline, StageFailed
from specstream.types import AvatarCue, Chunk, Message, SamplingParams, ScenePrompt, Span, Speech

__all__ = ["RecordedTurn", "Recorder", "SpokenRecord", "run_turn", "speak_text"]


@dataclass(slots=True, kw_only=True)
class SpokenRecord:
    """What was spoken, and its timing in milliseconds from the beginning.

    ``ttfa_ms`` is when the first audible sample can be played.
    """

    ttfa_ms: float | None = None
    first_phrase_ms: float | None = None
    audio_seconds: float = 0.0
    failures: list[SpecstreamError] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class RecordedTurn(SpokenRecord):
    """One turn's report and timing; it begins with the request's arrival."""

    report: Report


def _ignore(event: Event) -> None:
    """Do nothing with an event."""


async def run_turn(
    engine: Engine,
    pipeline: Pipeline,
    messages: list[Message],
    params: SamplingParams,
    on_event: Callable[[Event], None] = _ignore,
    *,
    speculate: bool = True,
) -> RecordedTurn:
    """Run one turn from the prompt to the last event; ``on_event`` gets every event, in order."""
    started = time.perf_counter()
    async with engine.generate(messages, params, speculate=speculate) as chunks:
        said = await _follow(chunks, pipeline, on_event, started)
        return RecordedTurn(
            report=chunks.report,
            ttfa_ms=said.ttfa_ms,
            first_phrase_ms=said.first_phrase_ms,
            audio_seconds=said.audio_seconds,
            failures=said.failures,
        )


async def speak_text(text: str, pipeline: Pipeline, on_event: Callable[[Event], None]) -> SpokenRecord:
    """Run ``text`` through the pipeline as if a model had written it at once, in no tokens."""

    async def written() -> AsyncGenerator[Chunk, None]:
        yield Chunk(text, (), Span(0, 0), Span(0, len(text)), finish_reason="stop")

    return await _follow(written(), pipeline, on_event, time.perf_counter())


async def _follow(
    chunks: AsyncIterable[Chunk], pipeline: Pipeline, on_event: Callable[[Event], None], started: float
) -> SpokenRecord:
    """Follow a turn's events to the last one; ``started`` is when it began."""
    said, audible, listener = SpokenRecord(), FirstAudible(), PlayedEstimate()
    async with pipeline.run(chunks) as events:
        events.follow(lambda: listener.heard_s)
        async for event in events:
            now = (time.perf_counter() - started) * 1e3
            if isinstance(event.item, StageFailed):
                said.failures.append(event.item.error)
            elif isinstance(event.item, Speech):
                speech = event.item
                listener.put(speech)
                audible.add(speech.samples.start, speech.sample_rate, speech.pcm, now)
                if speech.pcm:
                    said.audio_seconds = speech.samples.end / speech.sample_rate
            elif event.source == "text" and said.first_phrase_ms is None:
                said.first_phrase_ms = now
            on_event(event)
    said.ttfa_ms = audible.ttfa_ms
    return said


_NAMES = ("speech.wav", "avatar.jsonl", "prompts.jsonl", "trace.json")


class Recorder:
    """The files of one turn; the first event removes those of an earlier turn.

    Leaving the block completes the files, also after a failure; after one, files that are empty or
    incomplete are then removed. With a ``signer`` the speech is signed once it is complete.
    """

    def __init__(self, out: Path, printer: RunPrinter, signer: SpeechSigner | None = None) -> None:
        self.counts: Counter[str] = Counter()  # of the turn's items, by the names of their types
        self.turn: SpokenRecord | None = None
        self._out = out
        self._printer = printer
        self._signer = signer
        self._trace: list[dict[str, Any]] = []
        self._wave: soundfile.SoundFile | None = None
        self._lines: dict[str, TextIO] = {}
        self._broken: set[str] = set()
        if out.is_file():
            raise OutputError(f"can't write into {out}: it is a file, and a folder is needed")
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=out).close()  # fails now instead of after the reply is written

    @property
    def written(self) -> list[str]:
        """The names of the files that exist."""
        return [name for name in _NAMES if (self._out / name).exists()]

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            with writing(self._out / name):
                try:
                    yield
                except soundfile.LibsndfileError as error:
                    raise OSError(f"{error} (is the disk full?)") from error
        except OutputError:
            self._broken.add(name)
            raise

    def _begin(self) -> None:
        for name in _NAMES:
            with self._writing(name):
                (self._out / name).unlink(missing_ok=True)
                if name.endswith("jsonl"):
                    self._lines[name] = open(self._out / name, "w", encoding="utf-8", buffering=1)

    def add(self, event: Event) -> None:
        """Take one event of the turn."""
        if not self._trace:
            self._begin()
        item = event.item
        entry: dict[str, Any] = {
            "seq": event.seq,
            "t_ms": round(event.t_ms, 3),
            "source": event.source,
            "type": type(item).__name__,
        }
        self.counts[entry["type"]] += 1
        if isinstance(item, StageFailed):
            entry["error"] = {"code": item.error.code, "message": str(item.error)}
        elif isinstance(item, AvatarCue):  # avatar.jsonl has the rest
            entry |= {"kind": item.kind, "name": item.name, "samples": item.samples}
        else:
            entry |= _plain(item)  # `t_ms` becomes that of the chunk or phrase, since the request
        entry["logged_ms"] = round(event.t_ms, 3)
        self._trace.append(entry)
        if isinstance(item, Chunk):
            self._printer.add(item)
        elif isinstance(item, Speech):
            self._write_audio(item)
        elif isinstance(item, AvatarCue):
            self._write_line("avatar.jsonl", item)
        elif isinstance(item, ScenePrompt):
            self._write_line("prompts.jsonl", item)

    def _write_audio(self, speech: Speech) -> None:
        if not speech.pcm:
            return
        with self._writing("speech.wav"):
            if self._wave is None:
                path, rate = self._out / "speech.wav", speech.sample_rate
                self._wave = soundfile.SoundFile(path, "w", rate, channels=1, subtype="PCM_16")
            self._wave.write(np.frombuffer(speech.pcm, dtype="<i2"))

    def _complete_audio(self) -> None:
        assert self._wave is not None
        self._wave.close()
        if self._signer is not None:
            self._signer.sign(self._out / "speech.wav")

    def _write_line(self, name: str, item: AvatarCue | ScenePrompt) -> None:
        with self._writing(name):
            self._lines[name].write(json.dumps(_plain(item), ensure_ascii=False) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Complete the files; raise the first failure, unless the block was left by an exception."""
        failed: OutputError | None = None
        closing: dict[str, Callable[[], None]] = {}
        if self._wave is not None:
            closing["speech.wav"] = self._complete_audio
        closing |= {name: file.close for name, file in self._lines.items()}
        for name, close in {**closing, "trace.json": self._write_trace}.items():
            try:
                with self._writing(name):
                    close()
            except OutputError as problem:
                failed = failed or problem
        if failed is not None or error is not None:
            self._clear()
        if failed is not None and error is None:
            raise failed

    def _clear(self) -> None:
        for name in self.written:
            with suppress(OSError):  # an error is being raised already
                if name in self._broken or not (self._out / name).stat().st_size:
                    (self._out / name).unlink()

    def _write_trace(self) -> None:
        """Write all events in order, with the turn's report and the machine."""
        if not self._trace:
            return
        report = None
        if self.turn is not None:
            own = {"ttfa_ms": self.turn.ttfa_ms, "audio_seconds": self.turn.audio_seconds}
            written = self.turn.report.to_dict() if isinstance(self.turn, RecordedTurn) else {}
            report = written | own
        values = {
            "report": report,
            "machine": {"python": platform.python_version(), "platform": platform.platform()},
            "events": self._trace,
        }
        text = json.dumps(values, ensure_ascii=False, indent=1)
        (self._out / "trace.json").write_text(text, encoding="utf-8")


def _plain(value: Any) -> dict[str, Any]:
    """A value of `specstream.types` as JSON data, without its audio."""
    data = asdict(value)
    data.pop("pcm", None)
    return data
