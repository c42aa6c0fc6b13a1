"""Runs the parts of the GPU figures, each in a forked process with a time limit of its own."""

import faulthandler
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from specstream.model.load import prepare_device
from tests.gpu.context import Context, Mode, NotRehearsed
from tests.gpu.standins import standing_in

__all__ = ["Outcome", "Part", "run_all", "run_part"]

_LAST_WORDS = 2.0  # seconds before the limit at which a part says where it is
_ROOM = 4.0  # seconds before the limit at which a part should have ended by itself


@dataclass(frozen=True)
class Part:
    """One part of the figures.

    Attributes:
        name: For ``--only`` and the table.
        work: Does the part; returns what the result files should hold besides its rows.
        seconds: The most that it may take.
        least: It isn't begun with less time left.
        unrehearsed: Why a mode can't rehearse it, by mode.
        number: What fake tensors hold; greedy trees want 0, so that all their nodes are alike.
    """

    name: str
    work: Callable[[Context], dict[str, Any]]
    seconds: float
    least: float = 8.0
    unrehearsed: dict[Mode, str] = field(default_factory=dict)
    number: float = 0.5


@dataclass
class Outcome:
    """How a part ended, and all that it told until then."""

    part: str
    state: str  # done, failed, killed, died, left out, not rehearsed
    why: str = ""
    seconds: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def wrong(self) -> bool:
        """Whether something is broken, rather than slow."""
        missed = any(row.get("check") and row.get("bar") == "missed" for row in self.rows)
        return missed or self.state in ("failed", "killed", "died")


def run_all(
    parts: Sequence[Part], mode: Mode, tiny: bool, folder: Path, end: float, keep: float = 6.0
) -> list[Outcome]:
    """Run parts one after another until ``end``, by `time.monotonic`; a result line each.

    ``keep`` seconds are left for the table and the archive.
    """
    found = list[Outcome]()
    for part in parts:
        left = end - keep - time.monotonic()
        if mode in part.unrehearsed:
            outcome = Outcome(part.name, "not rehearsed", part.unrehearsed[mode])
        elif left < part.least:
            outcome = Outcome(part.name, "left out", f"{max(left, 0.0):.0f} s of the budget left")
        else:
            outcome = run_part(part, mode, tiny, folder, min(part.seconds, left))
        found.append(outcome)
        with (folder / "results.jsonl").open("a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")
        words = f" ({outcome.why})" if outcome.why else ""
        print(f"== {part.name}: {outcome.state} in {outcome.seconds:.1f} s{words}", flush=True)  # noqa: T201
    return found


def run_part(part: Part, mode: Mode, tiny: bool, folder: Path, limit: float) -> Outcome:
    """Fork a process for a part, wait for it, and kill it and all that it started at its limit."""
    told, began = folder / f"{part.name}.jsonl", time.monotonic()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _child(part, mode, tiny, folder, told, began + limit)
    status, killed = _wait(child, began + limit)
    outcome = Outcome(part.name, "done", seconds=time.monotonic() - began)
    for line in told.read_text().splitlines() if told.exists() else ():
        _take(outcome, line)
    told.unlink(missing_ok=True)
    if killed:
        time.sleep(1.0 if mode == "cuda" else 0.0)  # until the driver has its memory back
        outcome.state, outcome.why = "killed", f"at its limit of {limit:.0f} s"
    elif os.WIFSIGNALED(status):
        outcome.state = "died"
        outcome.why = f"by signal {signal.Signals(os.WTERMSIG(status)).name}"
    elif os.WEXITSTATUS(status) and outcome.state == "done":
        outcome.state, outcome.why = "died", f"with exit status {os.WEXITSTATUS(status)}"
    return outcome


def _take(outcome: Outcome, line: str) -> None:
    """Add a line of a part; the last one may be cut off, if it was killed."""
    try:
        found = json.loads(line)
    except ValueError:
        return
    if "state" in found:
        outcome.state, outcome.why = found["state"], found.get("why", "")
        outcome.result = found.get("result", {})
    else:
        outcome.rows.append(found)


def _wait(child: int, limit: float) -> tuple[int, bool]:
    """Wait until a child has ended, which is killed at ``limit``: its status, and whether it was."""
    killed = False
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            _kill_group(child)  # what it started and left behind
            return status, killed
        if time.monotonic() > limit and not killed:
            killed = True
            _kill_group(child)
            os.kill(child, signal.SIGKILL)  # it may not have a group of its own yet
        time.sleep(0.02)


def _kill_group(child: int) -> None:
    try:
        os.killpg(child, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _child(
    part: Part, mode: Mode, tiny: bool, folder: Path, told: Path, limit: float
) -> None:  # never returns
    code = 0
    try:
        os.setsid()
        seconds = limit - time.monotonic()
        if seconds > 2 * _LAST_WORDS:
            faulthandler.dump_traceback_later(seconds - _LAST_WORDS, file=2)
        with told.open("a") as file:

            def tell(row: dict[str, Any]) -> None:
                file.write(json.dumps(row, default=str) + "\n")
                file.flush()

            tell(_run(part, Context(mode, tiny, limit - _ROOM, folder, tell)))
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class _Complaints(logging.Handler):
    """Tells the warnings of specstream once each; a proposer that broke is a mistake.

    Replies stay right without it, so nothing else would show that.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(logging.WARNING)
        self._context, self._heard = context, set[str]()

    def emit(self, record: logging.LogRecord) -> None:
        """Tell a warning."""
        said = record.getMessage().splitlines()[0]
        if said in self._heard or "no chat template" in said:
            return
        self._heard.add(said)
        print(self.format(record), file=sys.stderr, flush=True)  # noqa: T201  # with its traceback
        if record.levelno >= logging.ERROR:
            self._context.check("an error was logged", False, said)
        else:
            self._context.row("a warning", said, left_out=True)


def _run(part: Part, context: Context) -> dict[str, Any]:
    logging.getLogger("specstream").addHandler(_Complaints(context))
    try:
        if context.real:
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                raise RuntimeError("CUDA was initialised before this process was forked")
            prepare_device(context.device)
        with standing_in(context.mode, part.number):
            return {"state": "done", "result": part.work(context)}
    except NotRehearsed as error:
        return {"state": "not rehearsed", "why": str(error)}
    except Exception as error:
        traceback.print_exc()
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = (str(error).strip().splitlines() or [""])[0]
        where = f"{Path(last.filename).name}:{last.lineno}"
        return {"state": "failed", "why": f"{type(error).__name__} at {where}: {said}"}
