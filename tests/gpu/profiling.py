"""Where the time of a round goes, by kernel; and a captured pass under compute-sanitizer."""

import cProfile
import gzip
import pstats
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from specstream.types import SamplingParams
from tests.gpu import captured_tiny
from tests.gpu.context import Context
from tests.gpu.models import padded
from tests.gpu.pace import device_times
from tests.gpu.pair import make_pair, prompts, requests
from tests.gpu.speed import PLAN

__all__ = ["profile", "sanitizer"]

_ROUNDS, _LARGEST = 3, 15
_HOST_ROUNDS, _HOST_LARGEST = 20, 40


@torch.inference_mode()
def profile(context: Context) -> dict[str, Any]:
    """Three rounds of draft-4 at 8B, for one request and for many."""
    pair = make_pair(context, "bfloat16", target=padded(context, "8B"), ends=False)
    batches = (1, 32) if not context.tiny else (1, 2)
    pair.capture(PLAN, batches)
    found = dict[str, Any]()
    for batch in batches:
        core = pair.core("draft-4", batch)
        params = [SamplingParams(max_tokens=400)] * batch
        live = requests(core, prompts(batch), params)
        while not all(request.stats.rounds > 2 for request in live):
            core.step()
        rows = _kernels(context, core, batch)
        found[f"batch {batch}"] = rows
        found[f"batch {batch}, host"] = _host(core, context.size(_HOST_ROUNDS, 2))
        largest = ", ".join(f"{row['name'][:24]} {row['ms']:.2f}" for row in rows[:3])
        total = sum(row["ms"] for row in rows)
        context.row(f"batch {batch}: ms of the kernels of a round", f"{total:.2f}: {largest}")
    return found


def _kernels(context: Context, core: Any, batch: int) -> list[dict[str, Any]]:
    """The kernels that take longest, in ms a round; the first batch leaves a trace as well."""
    with _traced(context, batch) as traced:
        for _ in range(_ROUNDS):
            core.step()
        torch.cuda.synchronize()
    if traced is None:
        return []
    if context.real:
        each = device_times(traced)
    else:  # there are no kernels: operations stand in for them
        events = traced.key_averages()
        each = [(event.key, event.self_cpu_time_total / 1e3, event.count) for event in events]
    largest = sorted(each, key=lambda one: -one[1])[:_LARGEST]
    return [{"name": name, "ms": ms / _ROUNDS, "calls": count} for name, ms, count in largest]


def _host(core: Any, rounds: int) -> list[dict[str, Any]]:
    """The Python functions that take longest, in ms a round; profiling makes each call slower."""
    profiler = cProfile.Profile()
    for _ in range(rounds):
        profiler.runcall(core.step)
    stats: dict[tuple[str, int, str], tuple[int, int, float, float, Any]]
    stats = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    rows: list[dict[str, Any]] = [
        {
            "name": f"{Path(file).name}:{line} {function}",
            "ms": own / rounds * 1e3,
            "ms_with_callees": whole / rounds * 1e3,
            "calls": calls / rounds,
        }
        for (file, line, function), (_, calls, own, whole, _) in stats.items()
    ]
    return sorted(rows, key=lambda row: -row["ms"])[:_HOST_LARGEST]


@contextmanager
def _traced(context: Context, batch: int) -> Iterator[Any]:
    """Profile a block; fake tensors run without, as a profiler would look at their memory."""
    if context.mode == "fake":
        yield None
        return
    kinds = torch.profiler.ProfilerActivity
    activities = [kinds.CPU, kinds.CUDA] if context.real else [kinds.CPU]
    with torch.profiler.profile(activities=activities) as traced:
        yield traced
    if batch > 1:
        return
    path = context.folder / "trace.json"
    traced.export_chrome_trace(str(path))
    with path.open("rb") as plain, gzip.open(f"{path}.gz", "wb", compresslevel=4) as packed:
        shutil.copyfileobj(plain, packed)
    path.unlink()


def sanitizer(context: Context) -> dict[str, Any]:
    """compute-sanitizer's memcheck over a captured pass; elsewhere the pass alone."""
    if not context.real:
        off = captured_tiny.run(context)
        context.check("captured passes of a tiny model", off < 0.1, f"off by {off:.1e}")
        context.row("compute-sanitizer", "not rehearsed: it needs a GPU")
        return {}
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).exists():
        context.row("compute-sanitizer", "not there", left_out=True)
        return {}
    command = [tool, "--tool", "memcheck", "--error-exitcode", "9", "--target-processes", "all"]
    command += [sys.executable, "-m", "tests.gpu.captured_tiny"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=context.left)
    except subprocess.TimeoutExpired:
        context.row("compute-sanitizer", "it did not end in time", left_out=True)
        return {}
    lines = (done.stdout + done.stderr).strip().splitlines()
    summary = next((line for line in lines if "ERROR SUMMARY" in line), "no summary")
    said = f"{summary.strip('= ')}; {lines[-1] if lines else ''}; status {done.returncode}"
    context.check("memcheck of captured passes", done.returncode == 0, said)
    return {"output": lines[:40] + lines[-40:]}
