"""Each kernel against plain arithmetic in float64, on inputs that are new in each run."""

import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specstream.model import fused
from specstream.model.attention.kernels import Kernel, Ragged, flash, padded
from specstream.model.numerics import to_device
from specstream.model.tree import Tree
from tests.gpu.context import Context

__all__ = ["kernels"]

_ALLOWED = 1e-2  # of the norm of the difference to that of the result
_QUERIES, _GROUPS, _DIMS = (1, 2, 5, 9, 17, 64), (1, 2, 3, 4, 8), (64, 128)
_USUAL = ((1, 3, 64), (5, 4, 128), (17, 1, 64), (1, 4, 128), (5, 3, 64), (64, 4, 128))
_GAP = 5  # rows between two slots


@dataclass(frozen=True)
class _Case:
    queries: Tensor
    keys: Tensor
    values: Tensor
    places: Ragged
    visible: list[Tensor]  # of each query: the pool's rows that it sees


def kernels(context: Context) -> dict[str, Any]:
    """Attention of chains and trees, then the kernels between products."""
    seed = random.randrange(2**31)
    torch.manual_seed(seed)
    for name, kernel, trees, dtypes in _attention(context):
        for dtype, seconds in dtypes.items():
            _compare(context, name, kernel, trees, dtype, seconds)
    _elementwise(context)
    return {"seed": seed}


def _attention(context: Context) -> Iterator[tuple[str, Kernel, bool, dict[torch.dtype, float]]]:
    """Each kernel: its name, whether it takes trees, and seconds for each dtype."""
    bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
    yield "padded", padded, True, {bf16: 2, f32: 2}
    if context.mode == "cpu":
        context.row("flash, attend", "not tried: they need a GPU")
        return
    yield "flash", flash, False, {bf16: 3, f16: 1.5}
    if fused.installed():
        from specstream.model.fused.attention import attend

        # Triton compiles it anew for most shapes, which takes about a second.
        yield "attend", attend, True, {bf16: 11, f16: 2, f32: 3}
    else:
        context.row("attend", "not tried: triton is not installed")


def _compare(
    context: Context, name: str, kernel: Kernel, trees: bool, dtype: torch.dtype, seconds: float
) -> None:
    """Try as many shapes as there is time for, those of real models first."""
    others = list(itertools.product(_QUERIES, _GROUPS, _DIMS))
    random.shuffle(others)
    shapes = list(_USUAL) if context.tiny else list(dict.fromkeys([*_USUAL, *others]))
    worst, where, count, began = 0.0, "", 0, time.monotonic()
    for queries, group, dim in shapes:
        if count and not context.tiny and time.monotonic() - began > seconds:
            break
        for tree in (False, True)[: 1 + (trees and queries > 3)]:
            case = _case(context, queries, group, dim, dtype, tree)
            off = _off(context, kernel, case)
            count += 1
            if not off <= worst:
                worst, where = off, f"{queries} queries, group {group}, dim {dim}, tree {tree}"
    label = f"{name}, {str(dtype).removeprefix('torch.')}, {count} cases"
    ok = worst < _ALLOWED
    context.check(label, ok, f"off by {worst:.1e} at most" + ("" if ok else f": {where}"))


@torch.inference_mode()
def _off(context: Context, kernel: Kernel, case: _Case) -> float:
    """The norm of the difference to that of the result; the memory of the output held NaN before."""
    for _ in range(2):  # freed memory is used again for the output
        torch.full_like(case.queries, torch.nan)
    found = kernel(case.queries, case.keys, case.values, case.places)
    if found.shape != case.queries.shape or found.device != case.queries.device:
        raise ValueError(f"{found.shape} on {found.device}")
    if context.mode == "fake":
        return 0.0
    wanted = _written_out(case)
    off = (found.double() - wanted).norm() / wanted.norm()
    return float(off.nan_to_num(torch.inf))


def _written_out(case: _Case) -> Tensor:
    """Attention in float64, one query at a time: ``[T, heads, dim]``."""
    group = case.queries.shape[1] // case.keys.shape[1]
    found = list[Tensor]()
    for token, rows in enumerate(case.visible):
        key, value = (
            x.index_select(0, rows).double().repeat_interleave(group, 1)
            for x in (case.keys, case.values)
        )
        scores = torch.einsum("hd,mhd->hm", case.queries[token].double(), key)
        weights = (scores * case.queries.shape[2] ** -0.5).softmax(-1)
        found.append(torch.einsum("hm,mhd->hd", weights, value))
    return torch.stack(found)


def _case(context: Context, queries: int, group: int, dim: int, dtype: torch.dtype, tree: bool) -> _Case:
    """Four sequences of different lengths in slots out of order; all other rows are NaN."""
    kv_heads, device = 2, context.device
    counts = [queries, max(1, queries - 1), 1, queries]
    befores = [random.randrange(0, 40), random.randrange(60, 300), 0, random.randrange(300, 700)]
    ends = [before + count for before, count in zip(befores, counts, strict=True)]
    order = random.sample(range(4), 4)
    starts, at = [0] * 4, 3
    for sequence in order:
        starts[sequence], at = at, at + ends[sequence] + _GAP
    shape = (at, kv_heads, dim)
    used = torch.zeros(at, dtype=torch.bool)
    for start, end in zip(starts, ends, strict=True):
        used[start : start + end] = True
    hidden = ~used.to(device)[:, None, None]
    keys, values = (
        torch.randn(shape, device=device).to(dtype).masked_fill(hidden, torch.nan) for _ in range(2)
    )
    limits, nodes, visible = list[int](), list[int](), list[list[int]]()
    for start, before, count in zip(starts, befores, counts, strict=True):
        for limit, bits in _sight(before, count, tree):
            limits.append(limit)
            nodes.append(bits)
            rows = [*range(limit), *(limit + j for j in range(64) if bits >> j & 1)]
            visible.append([start + row for row in rows])

    def ints(*numbers: int) -> Tensor:
        return to_device(numbers, device, torch.int32)

    cumulative = [0, *itertools.accumulate(counts)]
    joint = torch.randn(sum(counts), (group + 2) * kv_heads, dim, device=device).to(dtype)
    places = Ragged(
        ints(*cumulative),
        ints(*starts, 0),
        ints(*ends),
        ints(*limits),
        to_device(nodes, device) if tree else None,
        max(counts),
        max(ends),
    )
    # A view, as of the joint product for queries, keys and values.
    seen = [] if context.mode == "fake" else [to_device(rows, device) for rows in visible]
    return _Case(joint[:, : group * kv_heads], keys, values, places, seen)


def _sight(before: int, count: int, tree: bool) -> list[tuple[int, int]]:
    """For each new token its limit and its word of nodes, as `Ragged` has them."""
    if not tree or count < 2:
        return [(before + number + 1, 0) for number in range(count)]
    parents = tuple(random.randrange(max(-1, node - 4), node) for node in range(count - 1))
    return [(before + 1, 0), *((before + 1, bits) for bits in Tree(parents).bits)]


def _elementwise(context: Context) -> None:
    """The kernels between products against torch's operations, in bfloat16 and float32."""
    if context.mode == "cpu" or not fused.installed():
        context.row("kernels between products", "not tried: they need a GPU and triton")
        return
    for dtype in (torch.bfloat16, torch.float32):
        for hidden, rows in ((64, 3), (4096, 17), (6144, 1))[: context.size(3, 1)]:
            for name, made in _between(context, dtype, hidden, rows):
                found, wanted = made()
                off = context.off(found, wanted)
                label = f"{name} {rows} x {hidden}, {str(dtype).removeprefix('torch.')}"
                if off >= _ALLOWED:
                    context.check(label, False, f"off by {off:.1e}")
                worst = max(_WORST.get(name, 0.0), off)
                _WORST[name] = worst
    for name, worst in _WORST.items():
        context.check(f"{name} against torch", worst < _ALLOWED, f"off by {worst:.1e} at most")


_WORST: dict[str, float] = {}  # a part has a process of its own


def _between(
    context: Context, dtype: torch.dtype, hidden: int, rows: int
) -> Iterator[tuple[str, Callable[[], tuple[Tensor, Tensor]]]]:
    from specstream.model.fused.elementwise import add_norm, rotate_and_store, silu_mul

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, device=context.device).to(dtype)

    def norm() -> tuple[Tensor, Tensor]:
        x, more, weight = noise(rows, hidden), noise(rows, hidden), noise(hidden)
        wanted = F.rms_norm((x + more).float(), (hidden,), weight.float(), 1e-6)
        return add_norm(x, more, weight, 1e-6).float(), wanted

    def gate() -> tuple[Tensor, Tensor]:
        joint = noise(rows, 2 * hidden)
        wanted = F.silu(joint[:, :hidden].float()) * joint[:, hidden:].float()
        return silu_mul(joint).float(), wanted

    def rotation() -> tuple[Tensor, Tensor]:
        heads, kv_heads, dim = 6, 2, 64
        joint, cos, sin = noise(rows, heads + 2 * kv_heads, dim), noise(rows, dim), noise(rows, dim)
        pool = torch.full((2, 40, kv_heads, dim), torch.nan, dtype=dtype, device=context.device)
        places = to_device([39 - 2 * row for row in range(rows)], context.device)
        x = joint[:, : heads + kv_heads].float()
        swapped = torch.cat((x[..., dim // 2 :], x[..., : dim // 2]), -1)
        turned = x * cos.float()[:, None] + swapped * sin.float()[:, None]
        values = joint[:, heads + kv_heads :].float()
        queries = rotate_and_store(joint, cos, sin, places, pool, heads).float()
        stored = [half.index_select(0, places).float() for half in (pool[0], pool[1])]
        return torch.cat([queries, *stored], 1), torch.cat([turned, values], 1)

    yield "add and norm", norm
    yield "silu times", gate
    yield "rotate and store", rotation
