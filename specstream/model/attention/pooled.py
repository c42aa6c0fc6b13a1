"""Attention of many sequences in one kernel call per layer, over one key-value pool: for GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import cast

from torch import Tensor

from specstream.model.attention.base import AttentionBackend, AttentionPlan, Batch, kept_rows
from specstream.model.attention.kernels import Kernels, Ragged, choose_kernels, padded
from specstream.model.kv import KVPool, PooledCache, rows_in_free_memory
from specstream.model.numerics import to_device
from specstream.model.tree import Tree
from specstream.model.weights import DecoderWeights

__all__ = ["Layout", "PooledAttention", "PooledPlan"]


class PooledAttention(AttentionBackend):
    """Attention over one `KVPool` that holds the rows of all sequences.

    Args:
        weights: The model's sizes, dtype and device.
        rows: Size of the pool. Default: as fits into a share of the GPU's free memory.
        kernels: The attention kernels. Default: those of `choose_kernels`.
        share: That share; the rest is for what is loaded later, graphs and activations.
    """

    def __init__(
        self,
        weights: DecoderWeights,
        rows: int | None = None,
        kernels: Kernels | None = None,
        share: float = 0.5,
    ) -> None:
        w = weights
        self.kernels = kernels or choose_kernels(w.dtype, w.head_dim, w.heads, w.kv_heads, w.device)
        self.pool = KVPool(weights, rows_in_free_memory(weights, share) if rows is None else rows)

    def new_cache(self, fixed_capacity: int | None = None) -> PooledCache:
        """See `AttentionBackend.new_cache`; a fixed capacity is refused with ValueError."""
        if fixed_capacity is not None:
            raise ValueError("a pooled cache has no fixed capacity")
        return PooledCache(self.pool)

    @property
    def trees_with_chains(self) -> bool:
        """Whether one kernel takes trees and chains of rounds, in one pass."""
        return self.kernels.trees is self.kernels.rounds

    @property
    def by_length(self) -> bool:
        """Whether the time of a pass depends on sequences' true lengths, not on an upper bound."""
        return self.kernels.rounds is not padded

    @property
    def free_bytes(self) -> int:
        """See `AttentionBackend.free_bytes`."""
        return self.pool.free_rows * self.pool.row_bytes

    def plan(self, batch: Batch) -> AttentionPlan:
        """See `AttentionBackend.plan`; everything goes to the device in one transfer."""
        layout, trees = Layout(), batch.trees or [None] * len(batch.counts)
        for cache, count, tree in zip(batch.caches, batch.counts, trees, strict=True):
            pooled = cast(PooledCache, cache)
            pooled.reserve(pooled.length + count)
            layout.append(pooled.slot.start, pooled.length, count, tree)
        narrow = sum(batch.keeps) < layout.tokens
        kept = kept_rows(batch.counts, batch.keeps) if narrow else []
        starts = [*accumulate(batch.keeps, initial=0)] if narrow else []
        sizes = *layout.sizes, len(kept), len(starts)
        packed = to_device([*layout.packed, *kept, *starts], self.pool.kv.device)
        *parts, rows, query_starts = packed.split_with_sizes(sizes)
        placed = layout.placed(parts, max(layout.key_counts), nodes=layout.trees)
        if not narrow:
            return PooledPlan(self, placed)
        return PooledPlan(self, placed, (rows, query_starts.int(), max(batch.keeps)))


@dataclass(slots=True)
class Layout:
    """Where the tokens of a pass lie in the pool and what they see, collected on the host.

    Attributes:
        rows: Each token's row in the pool.
        positions: Each token's position.
        limits: See `Ragged`; so are the following ones.
        nodes: 0 for a token of a chain.
        query_starts: See `Ragged`.
        key_starts: See `Ragged`.
        key_counts: See `Ragged`.
        trees: Whether any sequence has a tree.
        longest: The most tokens of a sequence.
    """

    rows: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    query_starts: list[int] = field(default_factory=lambda: [0])
    key_starts: list[int] = field(default_factory=list)
    key_counts: list[int] = field(default_factory=list)
    trees: bool = False
    longest: int = 0

    def append(self, start: int, before: int, count: int, tree: Tree | None, width: int = 0) -> None:
        """Add a sequence.

        Args:
            start: Its first row in the pool.
            before: Its rows before the pass.
            count: Its new tokens.
            tree: The tree that the last of them form.
            width: Fill the sequence up to so many tokens, with junk behind the others.
        """
        end = before + max(count, width)
        self.rows += range(start + before, start + end)
        if tree is None:
            self.positions += range(before, end)
            self.limits += range(before + 1, end + 1)
            self.nodes += [0] * (end - before)
        else:
            self.trees = True
            root, size = before + count - len(tree.parents), len(tree.parents)
            junk = end - before - count
            self.positions += [*range(before, root), *(root + depth for depth in tree.depths)]
            self.positions += [root] * junk
            self.limits += [*range(before + 1, root + 1), *[root] * (size + junk)]
            self.nodes += [*[0] * (root - before), *tree.bits, *[1] * junk]  # junk sees a node, too
        self.query_starts.append(self.query_starts[-1] + end - before)
        self.key_starts.append(start)
        self.key_counts.append(end)
        self.longest = max(self.longest, end - before)

    @property
    def tokens(self) -> int:
        """The tokens of the pass, junk included."""
        return len(self.rows)

    @property
    def packed(self) -> list[int]:
        """All numbers in a row, for one transfer to the device."""
        lists = self.rows, self.positions, self.limits, self.nodes
        return [*(one for each in lists for one in each), *self._of_sequences]

    @property
    def _of_sequences(self) -> list[int]:
        return [*self.query_starts, *self.key_starts, 0, *self.key_counts]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The lengths of the parts of `packed`: four by tokens, and that of all sequences."""
        return *[self.tokens] * 4, len(self._of_sequences)

    def placed(self, parts: Sequence[Tensor], most_keys: int, *, nodes: bool) -> PlacedTokens:
        """Return the pass's places.

        Args:
            parts: The parts of `packed` on the device, int64 ``[sizes[i]]`` each.
            most_keys: Upper bound of the rows of a sequence.
            nodes: Whether any sequence is, or may become, a tree.
        """
        rows, positions, limits, bits, sequences = parts
        n = len(self.key_counts)
        starts, keys, counts = sequences.int().split_with_sizes([n + 1, n + 1, n])
        shown = bits if nodes else None
        ragged = Ragged(starts, keys, counts, limits.int(), shown, self.longest, most_keys)
        return PlacedTokens(rows, positions, ragged)


@dataclass(frozen=True, slots=True)
class PlacedTokens:
    """A `Layout` on the device.

    Attributes:
        rows: ``[T]`` int64, each token's row in the pool.
        positions: ``[T]`` int64.
        ragged: The attention's places.
    """

    rows: Tensor
    positions: Tensor
    ragged: Ragged


class PooledPlan(AttentionPlan):
    """Attention of chains and trees: one kernel call per layer.

    Args:
        backend: Pool and kernels.
        placed: Where the tokens are and what they see.
        kept: For `narrow` the kept tokens' numbers ``[n]``, their cumulative numbers ``[N + 1]`` int32,
            and the most that a sequence keeps; None: all are kept.

    Attributes:
        rows: ``[T]`` int64, the pool's row of each new token.
    """

    def __init__(
        self,
        backend: PooledAttention,
        placed: PlacedTokens,
        kept: tuple[Tensor, Tensor, int] | None = None,
    ) -> None:
        self._layers, self._kernels = backend.pool.layers, backend.kernels
        self.rows, self.positions, self._ragged = placed.rows, placed.positions, placed.ragged
        self._kept = kept

    def narrow(self) -> slice | Tensor:
        """See `AttentionPlan.narrow`."""
        if self._kept is None:
            return slice(None)
        (rows, starts, most), r = self._kept, self._ragged
        limits, nodes = r.limits.index_select(0, rows), r.nodes
        nodes = None if nodes is None else nodes.index_select(0, rows)
        self._ragged = Ragged(starts, r.key_starts, r.key_counts, limits, nodes, most, r.max_keys)
        return rows

    def pool(self, layer: int) -> Tensor:
        """The pool's keys and values of a layer: ``[2, rows, kv_heads, head_dim]``."""
        both: Tensor = self._layers[layer][0]
        return both

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """Let the queries see the rows that are written; arguments and result as in `forward`."""
        _, keys, values = self._layers[layer]
        return self._kernels(queries, keys, values, self._ragged).reshape(queries.shape[0], -1)

    def forward(self, layer: int, queries: Tensor, kv: Tensor) -> Tensor:
        """See `AttentionPlan.forward`."""
        new = kv.view(kv.shape[0], 2, -1, kv.shape[2]).transpose(0, 1)
        self.pool(layer).index_copy_(1, self.rows, new)
        return self.attend(layer, queries)
