"""Attention of chains and token trees of different lengths over slots of a key-value pool.

One kernel for all sequences, plus a small one if their keys are split. As in FlashAttention (Dao et al.
2022) a softmax's sums are corrected whenever a block of keys raises the maximum. As in Flash-Decoding
(Dao et al. 2023) several programs share one sequence's keys where there are few sequences. The query
heads of a key head are rows of one tile, so that each key is read once for all of them.

`None` and the constants in capitals are known when a kernel compiles. N, M and D are powers of two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache

import torch
import triton.language as tl
from torch import Tensor

from specstream.model.attention.base import Ragged
from specstream.model.fused import launch
from specstream.model.fused.launch import jit

__all__ = ["Tile", "attend", "choose_splits", "choose_tile"]

_PROCESSORS = 132  # of an H100
_PER_PROCESSOR = 2  # programs
_MOST_SPLITS = 64
_LEAST_KEYS = 64  # of a split


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program holds: ``rows`` pairs of query and head, ``keys`` keys at a time."""

    steps: int  # queries
    rows: int
    keys: int
    dim: int
    warps: int
    stages: int


@lru_cache(maxsize=256)
def choose_tile(group: int, dim: int, dtype: torch.dtype, max_queries: int) -> Tile:
    """Return a tile for ``group`` query heads per key head; rows and sizes are powers of two.

    A tile holds all queries of a sequence where it can: a second one would read all keys again. Float32
    has no matrix instructions that keep its precision, so its tiles are small enough for registers.
    """
    wide = dtype.itemsize > 2
    padded = max(16, _power(dim))
    rows = max(16, _power(group), min(16 if wide else 128, _power(group * max_queries)))
    keys = 32 if wide or padded > 128 else 64 if padded > 64 else 128
    return Tile(rows // group, rows, keys, padded, 8 if rows > 64 else 4, 2 if wide else 3)


def choose_splits(programs: int, max_keys: int, processors: int) -> int:
    """Return how many programs share a sequence's keys, so that they keep the processors busy.

    A power of two, and the same for all lengths below ``max_keys``: the number is part of a CUDA graph.
    """
    wanted = min(
        processors * _PER_PROCESSOR // max(programs, 1), -(-max_keys // _LEAST_KEYS), _MOST_SPLITS
    )
    return 1 << max(wanted, 1).bit_length() - 1


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, ragged: Ragged, splits: int | None = None
) -> Tensor:
    """Let queries attend to their sequences' rows; the scale is 1 / sqrt(head_dim).

    Sequences without queries are allowed. No row beyond a sequence's ``key_counts`` is read. A
    sequence's result depends on the others by ``max_queries`` and the number of splits only.

    Args:
        queries: ``[T, heads, head_dim]``; tokens and heads may have any stride.
        keys: ``[rows, kv_heads, head_dim]``, of the same dtype; rows and heads may have any stride.
        values: As ``keys``.
        ragged: Their places.
        splits: How many programs share a sequence's keys. Default: as `choose_splits` says.

    Returns:
        ``[T, heads, head_dim]``, contiguous. Rows of queries that belong to no sequence are unspecified.
    """
    (total, heads, dim), kv_heads = queries.shape, keys.shape[1]
    tile = choose_tile(heads // kv_heads, dim, queries.dtype, ragged.max_queries)
    tiles = -(-ragged.max_queries // tile.steps)
    programs = ragged.key_counts.shape[0] * tiles
    if splits is None:
        processors = _processors(queries.device)
        splits = choose_splits(programs * kv_heads, ragged.max_keys, processors)
    out = queries.new_empty((total, heads, dim))
    parts, lse = out, None
    if splits > 1:
        parts = out.new_empty((total, heads, splits, dim), dtype=torch.float32)
        lse = out.new_empty((total, heads, splits), dtype=torch.float32)
    places = ragged.query_starts, ragged.key_starts, ragged.key_counts, ragged.limits, ragged.nodes
    strides = (stride for x in (queries, keys, values) for stride in x.stride()[:2])
    launch.launch(
        _attend,
        (programs, kv_heads, splits),
        *(queries, keys, values, parts, lse, *places, tiles, *strides),
        GROUP=heads // kv_heads,
        DIM=dim,
        SCALE=dim**-0.5 * math.log2(math.e),
        STEPS=tile.steps,
        M=tile.rows,
        N=tile.keys,
        D=tile.dim,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    if lse is not None:
        sizes = {"DIM": dim, "SPLITS": _power(splits), "D": tile.dim}
        launch.launch(_merge, (total, heads), parts, lse, out, splits, **sizes, num_warps=4)
    return out


@cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda" or not torch.cuda.is_available():
        return _PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def _power(n: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << (n - 1).bit_length()


@jit("lse", "query_starts", "key_starts", "key_counts", "limits", "nodes", "tiles")
def _attend(
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    out: tl.tensor,  # [T, heads, DIM], or in float32 [T, heads, splits, DIM]
    lse: tl.tensor,  # None, or [T, heads, splits]: logarithms to base 2 of the sums of exponentials
    query_starts: tl.tensor,
    key_starts: tl.tensor,
    key_counts: tl.tensor,
    limits: tl.tensor,
    nodes: tl.tensor,
    tiles: tl.tensor,  # of a sequence
    query_stride: tl.tensor,
    query_head_stride: tl.tensor,
    key_stride: tl.tensor,
    key_head_stride: tl.tensor,
    value_stride: tl.tensor,
    value_head_stride: tl.tensor,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    SCALE: tl.constexpr,
    STEPS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
) -> None:
    """Mix one split of the values for one tile of queries: row m is query m // GROUP, head m % GROUP."""
    sequence = tl.program_id(0) // tiles
    first = tl.program_id(0) % tiles * STEPS
    start = tl.load(query_starts + sequence)
    count = tl.load(query_starts + sequence + 1) - start
    if first >= count:
        return
    m = tl.arange(0, M)
    d = tl.arange(0, D)
    step = first + m // GROUP
    valid = (m < STEPS * GROUP) & (step < count)
    token = (start + step).to(tl.int64)
    head = tl.program_id(1) * GROUP + m % GROUP
    inside = valid[:, None] & (d < DIM)[None, :]
    at = (token * query_stride + head * query_head_stride)[:, None] + d[None, :]
    tile = tl.load(queries + at, mask=inside, other=0.0)

    limit = tl.load(limits + token, mask=valid, other=0)
    bits = limit
    reach = limit
    if nodes is not None:
        bits = tl.load(nodes + token, mask=valid, other=0)
        reach = limit + tl.where(bits != 0, 64, 0)
        reach = tl.minimum(reach, tl.load(key_counts + sequence))
    end = tl.max(reach, 0)
    clear = tl.min(tl.where(valid, limit, 1 << 30), 0) // N * N  # all queries see the blocks before
    splits = tl.num_programs(2)
    share = tl.cdiv(tl.cdiv(end, splits), N) * N
    low = tl.program_id(2) * share
    high = tl.minimum(low + share, end)
    middle = tl.maximum(tl.minimum(high, clear), low)

    row = tl.load(key_starts + sequence).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    keys += row * key_stride + kv_head * key_head_stride
    values += row * value_stride + kv_head * value_head_stride
    wide = row * 0  # makes offsets within the sequence 64 bits wide
    top = tl.full([M], -1e30, tl.float32)  # finite: a difference of infinities is not a number
    total = tl.zeros([M], tl.float32)
    mixed = tl.zeros([M, D], tl.float32)
    for n in range(low, middle, N):
        k = _rows(keys + (wide + n) * key_stride, key_stride, N, N, DIM, D, False)
        v = _rows(values + (wide + n) * value_stride, value_stride, N, N, DIM, D, False)
        scores = tl.dot(tile, tl.trans(k), input_precision="ieee") * SCALE
        top, total, mixed = _add(scores, v, top, total, mixed)
    for n in range(middle, high, N):
        k = _rows(keys + (wide + n) * key_stride, key_stride, high - n, N, DIM, D, True)
        v = _rows(values + (wide + n) * value_stride, value_stride, high - n, N, DIM, D, True)
        scores = tl.dot(tile, tl.trans(k), input_precision="ieee") * SCALE
        seen = _seen(n + tl.arange(0, N), limit, bits, nodes is not None)
        scores = tl.where(seen, scores, float("-inf"))
        top, total, mixed = _add(scores, v, top, total, mixed)

    some = total > 0.0
    mixed = mixed / tl.where(some, total, 1.0)[:, None]
    place = token * (tl.num_programs(1) * GROUP) + head
    if lse is not None:
        place = place * splits + tl.program_id(2)
        inside = inside & some[:, None]  # the merge reads no part without keys
        found = tl.where(some, top + tl.log2(tl.where(some, total, 1.0)), float("-inf"))
        tl.store(lse + place, found, mask=valid)
    tl.store(out + place[:, None] * DIM + d[None, :], mixed.to(out.dtype.element_ty), mask=inside)


@jit()
def _rows(
    start: tl.tensor,
    stride: tl.tensor,
    count: tl.tensor,
    N: tl.constexpr,
    DIM: tl.constexpr,
    D: tl.constexpr,
    ENDS: tl.constexpr,
) -> tl.tensor:
    """Load N rows of keys or values as ``[N, D]``; zeros from ``count`` on, if it ENDS there."""
    n = tl.arange(0, N)
    d = tl.arange(0, D)
    at = start + n[:, None] * stride + d[None, :]
    if ENDS:
        found = tl.load(at, mask=(n < count)[:, None] & (d < DIM)[None, :], other=0.0)
    elif DIM < D:
        found = tl.load(at, mask=(d < DIM)[None, :], other=0.0)
    else:
        found = tl.load(at)
    return found


@jit()
def _seen(n: tl.tensor, limit: tl.tensor, bits: tl.tensor, TREES: tl.constexpr) -> tl.tensor:
    """Which of the rows ``n [N]`` the queries of a tile see: ``[M, N]``."""
    node = n[None, :] - limit[:, None]
    seen = node < 0
    if TREES:
        place = tl.minimum(tl.maximum(node, 0), 63).to(tl.int64)  # a shift by more is undefined
        seen = seen | ((node < 64) & ((bits[:, None] >> place & 1) != 0))
    return seen


@jit()
def _add(
    scores: tl.tensor, v: tl.tensor, top: tl.tensor, total: tl.tensor, mixed: tl.tensor
) -> tl.tensor:
    """Add a block of values ``v [N, D]`` by their scores ``[M, N]``, which are to base 2.

    A hidden row's score is minus infinity and its weight 0. As the maximum ``top`` is finite, this also
    holds in a block that a query sees nothing of.
    """
    new = tl.maximum(top, tl.max(scores, 1))
    weights = tl.exp2(scores - new[:, None])
    fade = tl.exp2(top - new)
    total = total * fade + tl.sum(weights, 1)
    mixed = tl.dot(weights.to(v.dtype), v, mixed * fade[:, None], input_precision="ieee")
    return new, total, mixed


@jit("lse", "splits")
def _merge(
    parts: tl.tensor,  # [T, heads, splits, DIM]
    lse: tl.tensor,  # [T, heads, splits]
    out: tl.tensor,  # [T, heads, DIM]
    splits: tl.tensor,
    DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    D: tl.constexpr,
) -> None:
    """Mix the parts of one query's head by their sums of exponentials."""
    row = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    s = tl.arange(0, SPLITS)
    d = tl.arange(0, D)
    some = tl.load(lse + row * splits + s, mask=s < splits, other=float("-inf"))
    weights = tl.exp2(some - tl.max(some, 0))
    wanted = (weights > 0.0)[:, None] & (d < DIM)[None, :]
    each = tl.load(parts + (row * splits + s)[:, None] * DIM + d[None, :], mask=wanted, other=0.0)
    mixed = tl.sum(each * weights[:, None], 0) / tl.sum(weights, 0)
    tl.store(out + row * DIM + d, mixed.to(out.dtype.element_ty), mask=d < DIM)
