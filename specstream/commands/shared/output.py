"""Output of the commands: notes, JSON, a reply while it is generated, and its figures."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from specstream.checks import counted, writing
from specstream.engine.generation import Generation
from specstream.errors import OutputError
from specstream.metrics import Report
from specstream.text.segmenter import Segmenter
from specstream.text.tags import SpokenText
from specstream.types import Chunk, Span

__all__ = [
    "RunPrinter",
    "note",
    "print_json",
    "print_reply",
    "shades",
    "tell_cut",
    "tell_report",
    "write_json",
]

# Plain, and light letters on dark grey: both colours are said, so that it is read on any background.
_SHADES = ("\033[0m", "\033[38;5;252;48;5;236m")
_RESET = "\033[0m"


def note(text: str = "") -> None:
    """Print a line for a person, on stderr."""
    print(text, file=sys.stderr, flush=True)


def shades(out: TextIO) -> bool:
    """Whether ``out`` is a terminal that shows shades, and none were declined with ``$NO_COLOR``."""
    dumb = os.environ.get("TERM") == "dumb"  # such a terminal shows the codes themselves
    return out.isatty() and not dumb and not os.environ.get("NO_COLOR")


def print_json(values: dict[str, Any]) -> None:
    """Print the machine-readable last line of stdout."""
    print(json.dumps(values, ensure_ascii=False), flush=True)


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write a file of JSON data; its folder is made if it isn't there.

    Raises:
        OutputError: it can't be written.
    """
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(values, indent=1, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")


class _Shown:
    """A reply's text without its directions; text from a bracket on waits until it is judged."""

    def __init__(self) -> None:
        self._segmenter = Segmenter()
        self._text = SpokenText[int]()
        self._tags_end = 0

    def add(self, chunk: Chunk, run: int) -> list[tuple[str, int]]:
        """Returns the text to be shown now, in pieces, and by which run each was written."""
        out = self._text.add(chunk.text, run)
        for phrase in self._segmenter.add(chunk):
            out += self._learn([tag.chars for tag in phrase.tags], phrase.chars.end)
        out += self._learn(*self._segmenter.known_tags())
        return [(text, origin) for text, _, origin in out]

    def _learn(self, tags: list[Span], end: int) -> list[tuple[str, Span, int]]:
        new = [tag for tag in tags if tag.start >= self._tags_end]
        self._tags_end = max([self._tags_end, *(tag.end for tag in new)])
        return self._text.know(new, end)

    def close(self) -> list[tuple[str, int]]:
        """The reply has ended: returns the rest."""
        out: list[tuple[str, Span, int]] = []
        for phrase in self._segmenter.close():
            out += self._learn([tag.chars for tag in phrase.tags], phrase.chars.end)
        return [(text, origin) for text, _, origin in (*out, *self._text.close())]


class RunPrinter:
    """Prints chunks as they come and, with ``show_runs``, marks the text of each target pass.

    On a terminal with `shades`, passes alternate between two backgrounds; elsewhere a thin bar divides
    them. Without ``directions``, tags such as ``[smile]`` are not shown: they are for a face.
    """

    def __init__(self, out: TextIO, *, show_runs: bool, directions: bool = True) -> None:
        self._out = out
        self._show = show_runs
        self._colour = show_runs and shades(out)
        self._shown = None if directions else _Shown()
        self._added = 0  # chunks with text
        self._runs = 0  # of which text was printed
        self._last = -1  # the chunk whose text was printed last
        self._error: OSError | None = None

    def check(self) -> None:
        """Raise the error that prevented the text from being shown, if there was one.

        Raises:
            BrokenPipeError: the reader of stdout has gone.
            OutputError: for any other reason.
        """
        if isinstance(self._error, BrokenPipeError):
            raise self._error
        if self._error is not None:
            reason = self._error.strerror or self._error
            raise OutputError(f"the text can't be shown: {reason}") from self._error

    def add(self, chunk: Chunk) -> None:
        """Print one chunk's text. A failure is kept for `check`, so that the turn can go on."""
        if chunk.text:
            self._added += 1
            plain = [(chunk.text, self._added)]
            self._print(plain if self._shown is None else self._shown.add(chunk, self._added))

    def end(self) -> None:
        """Finish the text and its line."""
        if self._shown is not None:
            self._print(self._shown.close())
        if self._runs:
            self._write("\n")

    def _print(self, pieces: list[tuple[str, int]]) -> None:
        for text, run in pieces:
            bar = "│" if self._show and self._runs and run != self._last else ""
            self._runs += run != self._last
            self._last = run
            shade = _SHADES[(self._runs - 1) % 2]
            self._write(f"{shade}{text}{_RESET}" if self._colour else bar + text)

    def _write(self, text: str) -> None:
        if self._error is not None:
            return
        try:
            self._out.write(text)
            self._out.flush()
        except OSError as error:
            self._error = error


async def print_reply(chunks: Generation, *, show_runs: bool, directions: bool = True) -> None:
    """Print a reply to stdout while it is generated; see `RunPrinter` for the options.

    Raises:
        BrokenPipeError, OutputError: see `RunPrinter.check`.
    """
    printer = RunPrinter(sys.stdout, show_runs=show_runs, directions=directions)
    try:
        async for chunk in chunks:
            printer.add(chunk)
            printer.check()
    finally:
        printer.end()


def tell_cut(report: Report, max_tokens: int) -> str | None:
    """A sentence on why a reply was cut at its maximum length; None for any other reply."""
    tokens = len(report.token_ids)
    if report.finish_reason != "length":
        return None
    if report.looping:
        return f"cut after {counted(tokens, 'token')}: it wrote the same sentence again and again"
    why = "; --max-tokens raises that" if tokens >= max_tokens else ": the model's context is full"
    return f"cut at {counted(tokens, 'token')}{why}"


def tell_report(report: Report, max_tokens: int) -> list[str]:
    """A report in words: a few short lines."""
    cut = tell_cut(report, max_tokens)
    lines = [] if cut is None else [cut]
    lines.append(
        f"{counted(len(report.token_ids), 'token')} in {report.total_ms / 1e3:.2f} s "
        f"({report.tokens_per_second:.0f} a second), first token after {report.ttft_ms:.0f} ms"
    )
    if report.reasoning_tokens:
        lines.append(f"of these {counted(report.reasoning_tokens, 'token')} of reasoning, not shown")
        if not report.text.strip() and report.finish_reason == "length":
            lines.append("the reply ended inside its reasoning: raise --max-tokens")
    if report.drafted:
        lines.append(
            f"acceptance: {report.accepted} of {counted(report.drafted, 'drafted token')} "
            f"({report.acceptance_rate:.0%}); {report.mean_acceptance_length:.2f} tokens for each of "
            f"the target's {counted(report.rounds, 'pass', 'passes')}"
        )
    return lines
