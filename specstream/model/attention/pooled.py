"""Attention of many sequences in one kernel call per layer, over one key-value pool: for GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import cast

import torch
from torch import Tensor

from specstream.model.attention.base import AttentionBackend, AttentionPlan, Batch, kept_rows
from specstream.model.attention.kernels import Kernel, Ragged, choose_kernel
from specstream.model.kv.pooled import KVPool, PooledCache, rows_in_free_memory
from specstream.model.transfer import to_device
from specstream.model.tree import Tree
from specstream.model.weights import DecoderWeights

__all__ = ["PooledAttention", "PooledPlan", "padded_rows"]


class PooledAttention(AttentionBackend):
    """Attention over one `KVPool` that holds the rows of all sequences.

    Args:
        weights: The model's sizes, dtype and device.
        rows: Size of the pool. Default: as fits into a share of the GPU's free memory.
        kernel: The attention kernel. Default: that of `choose_kernel`.
    """

    def __init__(
        self, weights: DecoderWeights, rows: int | None = None, kernel: Kernel | None = None
    ) -> None:
        self.kernel = kernel or choose_kernel(weights.dtype, weights.head_dim, weights.device)
        self.pool = KVPool(weights, rows_in_free_memory(weights) if rows is None else rows)

    def new_cache(self, fixed_capacity: int | None = None) -> PooledCache:
        """See `AttentionBackend.new_cache`; a fixed capacity is refused with ValueError."""
        if fixed_capacity is not None:
            raise ValueError("a pooled cache has no fixed capacity")
        return PooledCache(self.pool)

    @property
    def free_bytes(self) -> int:
        """See `AttentionBackend.free_bytes`."""
        return self.pool.free_rows * self.pool.row_bytes

    def plan(self, batch: Batch) -> AttentionPlan:
        """See `AttentionBackend.plan`."""
        caches = cast("Sequence[PooledCache]", batch.caches)
        for cache, count in zip(caches, batch.counts, strict=True):
            cache.reserve(cache.length + count)
        rows = [
            cache.slot.start + row
            for cache, count in zip(caches, batch.counts, strict=True)
            for row in range(cache.length, cache.length + count)
        ]
        written = to_device(rows, self.pool.kv.device)
        if batch.trees is None:
            return _ChainBatch(self, written, batch)
        return _TreeBatch(self, written, batch)


class PooledPlan(AttentionPlan):
    """Attention of chains: one causal kernel call per layer.

    Args:
        backend: Pool and kernel.
        written: ``[tokens]`` int64, the pool's row of each new token.
        ragged: Where each sequence's queries and keys are.
    """

    def __init__(self, backend: PooledAttention, written: Tensor, ragged: Ragged) -> None:
        self._layers, self._kernel = backend.pool.layers, backend.kernel
        self._written, self._ragged = written, ragged

    def narrow(self) -> slice | Tensor:
        """See `AttentionPlan.narrow`; here all tokens are kept."""
        return slice(None)

    def write(self, layer: int, kv: Tensor) -> tuple[Tensor, Tensor]:
        """Store the new keys and values of a layer; return the pool's keys and values of that layer."""
        both, keys, values = self._layers[layer]
        both.index_copy_(1, self._written, kv.view(kv.shape[0], 2, -1, kv.shape[2]).transpose(0, 1))
        return keys, values

    def forward(self, layer: int, queries: Tensor, kv: Tensor) -> Tensor:
        """See `AttentionPlan.forward`."""
        keys, values = self.write(layer, kv)
        found, _ = self._kernel(queries, keys, values, self._ragged, True)
        return found.reshape(queries.shape[0], -1)


class _ChainBatch(PooledPlan):
    """Attention of a `Batch` of chains, whose last layer may compute the kept tokens only."""

    def __init__(self, backend: PooledAttention, written: Tensor, batch: Batch) -> None:
        self._batch = batch
        super().__init__(backend, written, self._prepare(batch.counts, written.device))

    def _prepare(self, queries: Sequence[int], device: torch.device) -> Ragged:
        """Make indices for the last ``queries`` tokens of each sequence."""
        each = zip(self._batch.caches, self._batch.counts, strict=True)
        return _ragged(self._batch, queries, [cache.length + n for cache, n in each], device)

    def narrow(self) -> Tensor:
        """See `AttentionPlan.narrow`."""
        device = self._written.device
        self._ragged = self._prepare(self._batch.keeps, device)
        return to_device(kept_rows(self._batch.counts, self._batch.keeps), device)


class _TreeBatch(_ChainBatch):
    """Attention of a batch with trees, for kernels that take no mask.

    One kernel call without a causal mask attends to the rows before the pass. A small masked product,
    padded to the longest sequence, attends to the pass's own tokens. The two results are merged by
    their log-sum-exp.
    """

    def __init__(self, backend: PooledAttention, written: Tensor, batch: Batch) -> None:
        super().__init__(backend, written, batch)
        self._own = to_device(padded_rows(batch.counts, max(batch.counts)), written.device)

    def _prepare(self, keeps: Sequence[int], device: torch.device) -> Ragged:
        """As in `_ChainBatch`, and make the mask."""
        counts, trees = self._batch.counts, self._batch.trees or ()
        lengths = [cache.length for cache in self._batch.caches]
        width = max(keeps)
        seen = torch.zeros((len(counts), width, max(counts)), dtype=torch.bool)
        host = torch.device("cpu")
        for i, (count, keep, tree) in enumerate(zip(counts, keeps, trees, strict=True)):
            shape = tree or Tree(())
            seen[i, :keep] = shape.seen_behind(count - keep, keep, max(counts), host)
            seen[i, keep:, 0] = True  # padding attends to some key, so that its softmax is not NaN
        self._seen = seen.to(device, non_blocking=True)[:, None, None]
        self._asked = to_device(padded_rows(keeps, width), device)
        flat = [i * width + step for i, keep in enumerate(keeps) for step in range(keep)]
        self._flat = to_device(flat, device)
        no_rows = [
            not length for length, keep in zip(lengths, keeps, strict=True) for _ in range(keep)
        ]
        self._no_rows = to_device(no_rows, device, torch.bool)
        return _ragged(self._batch, keeps, lengths, device)

    def forward(self, layer: int, queries: Tensor, kv: Tensor) -> Tensor:
        """See `AttentionPlan.forward`."""
        keys, values = self.write(layer, kv)
        before, before_lse = self._kernel(queries, keys, values, self._ragged, False)
        own, own_lse = self._attend_to_pass(queries, kv)
        before_lse = before_lse.masked_fill(self._no_rows, -torch.inf)
        share = (before_lse - torch.logaddexp(before_lse, own_lse)).exp().T.unsqueeze(-1)
        # The kernel's output for a sequence without keys is unspecified and might be NaN.
        before = before.float().masked_fill(self._no_rows[:, None, None], 0.0)
        mixed = own + (before - own) * share
        return mixed.to(queries.dtype).reshape(queries.shape[0], -1)

    def _attend_to_pass(self, queries: Tensor, kv: Tensor) -> tuple[Tensor, Tensor]:
        """Output ``[n, heads, head_dim]`` over the pass's own tokens, log-sum-exp ``[heads, n]``."""
        heads, dim = queries.shape[1:]
        keys, values = kv[self._own].float().chunk(2, 2)
        grouped = queries[self._asked].float()
        grouped = grouped.view(*grouped.shape[:2], keys.shape[2], -1, dim)
        scores = torch.einsum("nqkgd,nmkd->nkgqm", grouped, keys) * dim**-0.5
        scores = scores.masked_fill(~self._seen, -torch.inf)
        mixed = torch.einsum("nkgqm,nmkd->nqkgd", scores.softmax(-1), values)
        lse = scores.logsumexp(-1).permute(1, 2, 0, 3).reshape(heads, -1)
        flat = mixed.reshape(-1, heads, dim)
        return flat.index_select(0, self._flat), lse.index_select(1, self._flat)


def _ragged(
    batch: Batch, queries: Sequence[int], keys: Sequence[int], device: torch.device
) -> Ragged:
    """Make the kernel's indices, with one transfer to the device for all of them."""
    caches = cast("Sequence[PooledCache]", batch.caches)
    starts = accumulate(queries, initial=0)
    rows = [cache.slot.start for cache in caches]
    n = len(rows)
    packed = to_device([*starts, *rows, 0, *keys], device, torch.int32)
    parts = packed.split_with_sizes([n + 1, n + 1, n])
    return Ragged(parts[0], parts[1], parts[2], max(queries), max(keys))


def padded_rows(counts: Sequence[int], width: int) -> list[list[int]]:
    """Return ``width`` rows of a pass for each sequence: its own, the last of which is repeated."""
    first, places = 0, list[list[int]]()
    for count in counts:
        places.append([first + min(step, count - 1) for step in range(width)])
        first += count
    return places
