"""How a reply and its figures look in a terminal."""

from __future__ import annotations

from typing import TextIO

from specstream.errors import OutputError
from specstream.metrics import Report
from specstream.types import Chunk

__all__ = ["RunPrinter", "tell_cut", "tell_report"]

_SHADES = ("\033[0m", "\033[48;5;236m")  # plain, and a slightly lifted background
_RESET = "\033[0m"


class RunPrinter:
    """Prints chunks as they come, so that one sees what each pass of the target committed.

    On a terminal, runs alternate between two backgrounds; elsewhere a thin bar divides them. With
    ``show_runs=False`` the text is printed as it is.
    """

    def __init__(self, out: TextIO, *, show_runs: bool) -> None:
        self._out = out
        self._show = show_runs
        self._colour = show_runs and out.isatty()
        self._runs = 0
        self._error: OSError | None = None

    def check(self) -> None:
        """Say if some of the text could not be shown.

        Raises:
            BrokenPipeError: who read it has gone.
            OutputError: any other reason.
        """
        if isinstance(self._error, BrokenPipeError):
            raise self._error
        if self._error is not None:
            reason = self._error.strerror or self._error
            raise OutputError(f"the text can't be shown: {reason}") from self._error

    def _write(self, text: str) -> None:
        if self._error is not None:
            return
        try:
            self._out.write(text)
            self._out.flush()
        except OSError as error:  # nobody reads any more, or a full disk: the rest goes on
            self._error = error

    def add(self, chunk: Chunk) -> None:
        """Print one chunk's text."""
        if not chunk.text:
            return
        if self._colour:
            self._write(f"{_SHADES[self._runs % 2]}{chunk.text}{_RESET}")
        elif self._show and self._runs:
            self._write(f"│{chunk.text}")
        else:
            self._write(chunk.text)
        self._runs += 1

    def end(self) -> None:
        """Finish the line."""
        if self._runs:
            self._write("\n")


def tell_cut(report: Report, max_tokens: int) -> str | None:
    """What cut a reply short, and what to do about it; None for a reply that ended by itself."""
    tokens = len(report.token_ids)
    if report.finish_reason != "length":
        return None
    if tokens >= max_tokens:
        return f"cut at {tokens} tokens; --max-tokens raises that"
    return f"cut at {tokens} tokens: the model's context is full"


def tell_report(report: Report, max_tokens: int) -> list[str]:
    """A report in plain words, a few short lines."""
    tokens = len(report.token_ids)
    cut = tell_cut(report, max_tokens)
    lines = [] if cut is None else [cut]
    lines.append(
        f"{tokens} tokens in {report.total_ms / 1e3:.2f} s ({report.tokens_per_second:.0f} a second), "
        f"first token after {report.ttft_ms:.0f} ms"
    )
    if report.reasoning_tokens:
        lines.append(f"of these {report.reasoning_tokens} tokens of reasoning, not shown")
        if not report.text.strip() and report.finish_reason == "length":
            lines.append("the reply ended inside its reasoning: raise --max-tokens")
    if report.drafted:
        lines.append(
            f"acceptance: {report.accepted} of {report.drafted} drafted tokens "
            f"({report.acceptance_rate:.0%}); {report.mean_acceptance_length:.2f} tokens for each of "
            f"the target's {report.rounds} passes"
        )
    return lines
