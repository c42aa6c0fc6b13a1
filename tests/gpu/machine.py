"""What the machine is: card, versions, bandwidth, products; and what memory a model takes there."""

import platform
import subprocess
import sys
from importlib import metadata
from shutil import which
from typing import Any

import torch

from specstream.model.graphs import TARGET
from tests.gpu.context import Context
from tests.gpu.models import capture, copy_bandwidth, padded, runner

__all__ = ["doctor", "env", "memory"]

_PACKAGES = ("torch", "transformers", "triton", "numpy", "pydantic", "websockets")


def env(context: Context) -> dict[str, Any]:
    """Card, driver, versions, bandwidth of a copy, a large product."""
    card = _output(context, "nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.sm")
    context.row("card, driver, memory, clock", card)
    versions = {name: _version(name) for name in _PACKAGES}
    words = ", ".join(f"{name} {version}" for name, version in versions.items())
    context.row("versions", f"Python {platform.python_version()}, {words}")
    bandwidth = copy_bandwidth(context)
    flops = _product(context)
    said = f"{bandwidth / 1e12:.2f} TB/s; {flops / 1e12:.0f} TFLOP/s"
    context.row("copy, reads and writes; 8192² matrices, bfloat16", said)
    found = {"card": card, "versions": versions, "copy_bytes_per_second": bandwidth}
    return found | {"product_flops": flops}


def doctor(context: Context) -> dict[str, Any]:
    """What ``specstream doctor`` says of the card; the last part, as it imports everything anew."""
    lines = _doctor(context).splitlines()
    told = [line for line in lines if line.startswith("gpu")]
    context.row("specstream doctor", "; ".join(told) or lines[-1])
    return {"doctor": lines}


def _output(context: Context, *command: str) -> str:
    if not context.real:
        return "a pretended H100, 0.0, 81559 MiB, 1980 MHz"
    if which(command[0]) is None:
        return f"{torch.cuda.get_device_name(0)} ({command[0]} is not there)"
    command = (*command, "--format=csv,noheader")
    done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    return (done.stdout.strip() or done.stderr.strip()).splitlines()[0]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def _product(context: Context) -> float:
    """Floating-point operations a second; the best of a few.

    On random numbers: cards multiply zeros and ones faster.
    """
    n, best = context.size(8192, 64), 0.0
    a, b = (torch.randn(n, n, device=context.device).bfloat16() for _ in range(2))
    for _ in range(context.size(8, 2)):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        torch.mm(a, b)
        end.record()
        torch.cuda.synchronize()
        best = max(best, 2 * n**3 / (start.elapsed_time(end) / 1e3))
    return best


def _doctor(context: Context) -> str:
    """The last lines of the command, or what kept it from running: it wants packages that may lack."""
    if context.mode == "fake":
        return "not asked on fake tensors"
    command = [sys.executable, "-m", "specstream.commands.main", "doctor"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=context.left)
    except subprocess.TimeoutExpired:
        return "it did not end in time"
    return "\n".join((done.stdout + done.stderr).strip().splitlines()[-40:]) or "it says nothing"


def memory(context: Context) -> dict[str, Any]:
    """What a model of 8B takes: weights, what joining them leaves behind, pool, captures, peak."""
    torch.cuda.reset_peak_memory_stats()
    model = padded(context, "8B")
    weights = sum(one.nbytes for one in model.parameters())
    made = runner(context, model)
    attention: Any = made.decoder.attention
    taken = {
        "weights": weights,
        "pool": attention.pool.kv.nbytes,
        "pool_rows": attention.pool.rows,
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
    }
    left_over = taken["reserved"] - taken["weights"] - taken["pool"]
    context.row("weights; pool", f"{_gb(weights)}; {_gb(taken['pool'])}, {taken['pool_rows']} rows")
    graphs = capture(context, made, TARGET, (1, 4))
    words = f"{_gb(left_over)}; {_gb(graphs.nbytes)}"
    context.row(f"left by joining; {len(graphs.passes.captured)} captured passes", words)
    free, total = torch.cuda.mem_get_info()
    context.row("peak; free", f"{_gb(torch.cuda.max_memory_allocated())}; {_gb(free)}")
    if graphs.passes.missing:
        context.row("not captured", graphs.passes.missing)
    return taken | {"captures": graphs.nbytes, "free": free, "total": total}


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
