"""What the engine would use of this machine, for `specstream doctor`; run as a module: as JSON."""

from __future__ import annotations

import importlib.metadata
import json
import os
from typing import Any

import torch

from specstream.checks import first_line
from specstream.model.native.builds import unfitting
from specstream.model.native.library import Library, native_library

__all__ = ["card_facts", "torch_facts"]

_HEADS = (32, 8, 128)  # query heads, key heads, size: of usual models with 8 billion parameters


def torch_facts() -> dict[str, Any]:
    """Describe the CPU's part, as `card_facts` does the GPU's; native code is tried, or compiled."""
    facts: dict[str, Any] = {"cpu_threads": torch.get_num_threads(), "cpus": os.cpu_count()}
    facts["cpu_bfloat16"] = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    native = native_library()
    facts["cpu_passes"] = f"native: {native.name}" if isinstance(native, Library) else native
    if better := unfitting():
        facts["cpu_better"] = {name: f"needs {needs}" for name, needs in better.items()}
    return facts | card_facts()


def card_facts() -> dict[str, str]:
    """Describe the GPU that ``device="auto"`` takes: one line about each part.

    Attention kernels are tried as they are when a model is loaded, which takes seconds where Triton
    compiles. Nothing is raised: what doesn't work is described.
    """
    if not torch.cuda.is_available():
        return {"gpu": _why_none()}
    from specstream.model import fused  # these import transformers, which takes a second
    from specstream.model.attention.kernels import choose_kernels

    device = torch.device("cuda", 0)
    try:
        found = {"gpu": _describe(device)}
        heads, kv_heads, size = _HEADS
        dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
        kernels = choose_kernels(dtype, size, heads, kv_heads, device)
        found["gpu_attention"] = kernels.names
    except RuntimeError as error:
        return {"gpu": f"not usable: {first_line(error)}"}
    found["gpu_layers"] = "torch's operations: Triton isn't installed"
    if fused.installed():
        found["gpu_layers"] = f"fused kernels (Triton {importlib.metadata.version('triton')})"
    found["gpu_passes"] = "short passes are captured as CUDA graphs; --no-compile runs all eagerly"
    return found


def _why_none() -> str:
    if torch.version.cuda is None:
        return "none (the CPU is used): this torch was built without CUDA"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return f"none (the CPU is used): {first_line(error)}"
    return "none (the CPU is used): torch sees no GPU"


def _describe(device: torch.device) -> str:
    free, total = torch.cuda.mem_get_info(device)
    major, minor = torch.cuda.get_device_capability(device)
    words = f"{torch.cuda.get_device_name(device)}, compute capability {major}.{minor}"
    words += f", {free / 2**30:.0f} of {total / 2**30:.0f} GiB free"
    if (count := torch.cuda.device_count()) > 1:
        words += f"; one of {count}, --device cuda:1 chooses another"
    if (major, minor) < (8, 0):
        words += "; older than 8.0: attention in plain torch operations, which is slow"
    return words


if __name__ == "__main__":
    print(json.dumps(torch_facts()), flush=True)  # noqa: T201 – the answer
    os._exit(0)  # torch's own ending takes half a second, for which `doctor` would wait
