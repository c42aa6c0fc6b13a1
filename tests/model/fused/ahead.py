"""Compiles all that the fused functions launch for an H100, on a machine without one.

Run as a program, without ``TRITON_INTERPRET``: it prints what it has compiled as JSON.
"""

import json
from collections.abc import Iterator
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from specstream.model.attention.base import Ragged
from specstream.model.fused import attention, elementwise, launch

TYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.int32: "i32",
    torch.int64: "i64",
}
OPTIONS = ("num_warps", "num_stages")


class Compiler:
    """Takes the place of `launch.launch`: compiles as Triton would for these arguments."""

    def __init__(self) -> None:
        self.found = list[dict[str, Any]]()
        self.label = ""

    def __call__(self, kernel: Any, grid: tuple[int, ...], *args: Any, **meta: Any) -> None:
        options = {name: meta.pop(name) for name in OPTIONS if name in meta}
        values = [*args, *meta.values()]
        assert kernel.arg_names == [*kernel.arg_names[: len(args)], *meta]
        signature, constants, attributes = dict[str, str](), dict[Any, Any](), dict[Any, Any]()
        for at, (param, value) in enumerate(zip(kernel.params, values, strict=True)):
            kind = kind_of(param, value)
            signature[param.name] = kind
            if kind == "constexpr":
                constants[(at,)] = value
            elif not param.do_not_specialize and is_aligned(value):
                attributes[(at,)] = [["tt.divisibility", 16]]
        source = ASTSource(kernel, signature, constants, attributes)
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        ptx = made.asm["ptx"]
        matrix = ptx.count("wgmma.mma_async") + ptx.count("mma.sync")
        entry = {"label": self.label, "name": kernel.__name__, "shared": made.metadata.shared}
        self.found.append({**entry, "matrix": matrix, "async": ptx.count("cp.async.cg")})
        self.last = made


def kind_of(param: Any, value: Any) -> str:
    """The type of an argument in a kernel's signature."""
    if param.is_constexpr or value is None:
        return "constexpr"
    if isinstance(value, Tensor):
        return "*" + TYPES[value.dtype]
    if isinstance(value, int):
        return "constexpr" if value == 1 and not param.do_not_specialize else "i32"
    return "fp32"


def is_aligned(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.data_ptr() % 16 == 0
    return isinstance(value, int) and value % 16 == 0


def variants() -> Iterator[tuple[str, Any]]:
    """Labels and calls: decoding, verification of chains and trees, and prefill of several models."""
    bf16, half, full = torch.bfloat16, torch.float16, torch.float32
    for queries, trees, heads, kv_heads, dim, dtype in (
        (1, False, 9, 3, 64, bf16),
        (6, True, 9, 3, 64, bf16),
        (1, False, 32, 8, 128, bf16),
        (8, True, 32, 8, 128, bf16),
        (16, False, 32, 8, 128, bf16),
        (17, True, 32, 8, 128, half),
        (512, False, 32, 8, 128, bf16),
        (512, False, 8, 8, 80, bf16),
        (512, True, 8, 4, 256, bf16),
        (4, True, 8, 2, 64, full),
        (512, False, 8, 2, 128, full),
    ):
        label = f"{queries} queries, {heads}/{kv_heads} heads of {dim}, {TYPES[dtype]}"
        yield (
            label,
            lambda q=queries, t=trees, h=heads, k=kv_heads, d=dim, x=dtype: attend(q, t, h, k, d, x),
        )
    x, weight = torch.zeros(2, 4096, dtype=bf16), torch.ones(4096, dtype=bf16)
    yield "with sum", lambda: elementwise.add_norm(x, x.clone(), weight, 1e-5)
    yield "norm only", lambda: elementwise.add_norm(x, None, weight, 1e-5)
    yield "bf16", lambda: elementwise.silu_mul(x)
    for dim in (128, 80):
        yield f"heads of {dim}", lambda d=dim: rotate(d)


def attend(queries: int, trees: bool, heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> None:
    """One call with splits, of one sequence, as in decoding."""
    joint = torch.zeros(queries, heads + 2 * kv_heads, dim, dtype=dtype)
    pool = torch.zeros(2, 16, kv_heads, dim, dtype=dtype)
    indices = torch.zeros(1 << 10, dtype=torch.int32)
    nodes = torch.zeros(queries, dtype=torch.int64) if trees else None
    places = Ragged(indices[:2], indices[2:4], indices[4:5], indices[5:], nodes, queries, 8192)
    splits = 1 if queries > 64 else None
    attention.attend(joint[:, :heads], pool[0], pool[1], places, splits=splits)


def rotate(dim: int) -> None:
    joint, angles = torch.zeros(2, 12, dim), torch.zeros(2, dim)
    joint, angles = joint.bfloat16(), angles.bfloat16()
    rows, pool = torch.zeros(2, dtype=torch.int64), torch.zeros(2, 16, 2, dim).bfloat16()
    elementwise.rotate_and_store(joint, angles, angles, rows, pool, 8)


def main() -> None:
    compiler = Compiler()
    launch.launch = compiler
    for compiler.label, call in variants():
        call()
    print(json.dumps(compiler.found))  # noqa: T201


if __name__ == "__main__":
    main()
