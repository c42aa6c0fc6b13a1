"""Writing of a turn's output to files while the turn runs."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self, TextIO

import numpy as np
import soundfile

from specstream.commands.output import RunPrinter
from specstream.commands.timed_turn import Spoken, Turn
from specstream.errors import OutputError
from specstream.pipeline.stage import Event, StageFailed
from specstream.types import AvatarCue, Chunk, ScenePrompt, Speech
from specstream.wording import writing

__all__ = ["Recorder"]

_NAMES = ("speech.wav", "avatar.jsonl", "prompts.jsonl", "trace.json")


class Recorder:
    """The files of one turn; the first event removes those of an earlier turn.

    Leaving the block completes the files, also after a failure; after one, files that are empty or
    incomplete are then removed.
    """

    def __init__(self, out: Path, printer: RunPrinter) -> None:
        self.counts: Counter[str] = Counter()  # of the turn's items, by the names of their types
        self.turn: Spoken | None = None
        self._out = out
        self._printer = printer
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
            closing["speech.wav"] = self._wave.close
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
            written = self.turn.report.to_dict() if isinstance(self.turn, Turn) else {}
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
