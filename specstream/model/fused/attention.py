"""Attention of chains and token trees of different lengths over slots of a key-value pool.

One kernel for all sequences, plus a small one if their keys are split. As in FlashAttention (Dao et al.
2022) a softmax's sums are corrected whenever a block of keys raises the maximum. As in Flash-Decoding
(Dao et al. 2023) several programs share one sequence's keys where there are few sequences. The query
heads of a key head are rows of one tile, so that each key is read once for all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache

import torch
from torch import Tensor

from specstream.model.attention.base import Ragged
from specstream.model.fused import attention_kernels, launch

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
        attention_kernels.attend,
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
        merge = attention_kernels.merge
        launch.launch(merge, (total, heads), parts, lse, out, splits, **sizes, num_warps=4)
    return out


@cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda" or not torch.cuda.is_available():
        return _PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def _power(n: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << (n - 1).bit_length()
