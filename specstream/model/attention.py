"""Attention of a flat pass: each sequence's rows over its own cache, alone or in turn."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from specstream.model.slab import SlabCache
from specstream.model.transfer import to_device
from specstream.model.tree import Tree

__all__ = ["SHORT", "Alone", "Heads", "InTurn", "Masks", "Reader"]

SHORT = 64  # tokens of a sequence up to which query heads of one group are folded into one
_STORED = 8192  # context up to which masks are kept: there is one for each width


class Reader(Protocol):
    """One or several sequences' share of a flat pass."""

    @property
    def count(self) -> int:
        """How many sequences."""
        ...

    @property
    def rows(self) -> int:
        """How many of the pass are its own, behind those of the reader before it."""
        ...

    @property
    def kept(self) -> slice | Tensor:
        """Which of its rows are queries."""
        ...

    def ask(self, keeps: Sequence[int]) -> None:
        """Have only the last rows of each sequence as queries from now on."""
        ...

    def attend(self, index: int, joint: Tensor) -> Tensor:
        """Write the rows of layer ``index`` and read all rows there are.

        Args:
            index: Which layer.
            joint: ``[rows, heads + 2 * kv_heads, head_dim]``: queries and keys, rotated, and values.

        Returns:
            ``[kept, heads * head_dim]``.
        """
        ...


@dataclass(frozen=True, slots=True)
class Heads:
    """How many there are: query heads, key heads, and the size of each."""

    queries: int
    keys: int
    dim: int

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.queries // self.keys

    @property
    def parts(self) -> tuple[int, int]:
        """Of a row as it is computed: query heads first, then those of keys and values."""
        return self.queries, 2 * self.keys

    def read(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attention of few queries, those of one key head folded into one matrix.

        No key is repeated for them.

        Args:
            queries: ``[B * n, heads, head_dim]``, n for each of B sequences.
            keys: ``[B, kv_heads, rows, head_dim]``.
            values: The same.
            mask: Added to the scores, ``[B, 1, n * group, rows]`` or what can be broadcast to it.

        Returns:
            ``[B * n, heads * head_dim]``.
        """
        folded = self.fold(queries, keys.shape[0])
        return self.unfold(F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask))

    def fold(self, queries: Tensor, batch: int = 1) -> Tensor:
        """``[B * n, heads, head_dim]`` to ``[B, kv_heads, n * group, head_dim]``."""
        each = queries.view(batch, -1, self.keys, self.group * self.dim)
        return each.transpose(1, 2).reshape(batch, self.keys, -1, self.dim)

    def unfold(self, mixed: Tensor) -> Tensor:
        """What came of folded queries, ``[B * n, heads * head_dim]``."""
        each = mixed.view(mixed.shape[0], self.keys, -1, self.group, self.dim)
        return each.transpose(1, 2).reshape(-1, self.queries * self.dim)

    def read_one(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        """The same for one query of one sequence, whose heads lie as they are needed."""
        folded = queries.view(1, self.keys, self.group, self.dim)
        mixed = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask)
        # Not every device's kernel leaves its result in one piece.
        return mixed.reshape(1, self.queries * self.dim)

    def read_long(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        """The same for many queries of one sequence; without a mask they see what is before them."""
        count = queries.shape[0]
        mixed = F.scaled_dot_product_attention(
            queries.transpose(0, 1).unsqueeze(0),
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=self.group > 1,
        )
        return mixed[0].transpose(0, 1).reshape(count, self.queries * self.dim)


class Masks:
    """What is added to the scores: 0 where a query may look, else minus infinity."""

    def __init__(self, group: int, dtype: torch.dtype, device: torch.device) -> None:
        self.device = device
        self._group, self._dtype = group, dtype
        self._causal: dict[int, Tensor] = {}

    def of(self, count: int, at: int, fixed_capacity: int | None) -> Tensor | None:
        """For ``count`` queries behind ``at`` rows: ``[count * group, rows]``.

        For long ones, of which each head stands for itself, ``[count, rows]``.

        None where every query may look everywhere, or where the kernel's own causal mask says the
        same.
        """
        folds = self._group if count <= SHORT else 1
        if fixed_capacity is not None:
            limits = torch.arange(at, at + count, device=self.device).unsqueeze(1)
            seen = torch.arange(fixed_capacity, device=self.device) <= limits
            return self._additive(seen).repeat_interleave(folds, 0)
        if count == 1 or (count > SHORT and at == 0):
            return None
        if count > SHORT:
            return self._triangle(count, at)
        if at > _STORED:
            return self._triangle(count, at).repeat_interleave(folds, 0)
        # A stored triangle behind enough zeros serves every position by being cut at another place.
        stored = self._causal.get(count)
        if stored is None or stored.shape[1] < at + count:
            room = max(512, 2 * at)
            stored = self._triangle(count, room).repeat_interleave(folds, 0)
            self._causal[count] = stored
        return stored[:, stored.shape[1] - at - count :]

    def tree(self, tree: Tree, count: int, at: int, fixed_capacity: int | None) -> Tensor:
        """The same where the last of the ``count`` queries are a tree; they see their ancestors."""
        folds = self._group if count <= SHORT else 1
        width = fixed_capacity or at + count
        seen = tree.seen_behind(at, count, width, self.device)
        return self._additive(seen).repeat_interleave(folds, 0)

    def upto(self, last: Tensor, rows: int) -> Tensor:
        """For queries ``[B, n]`` that see rows up to ``last``: ``[B, 1, n * group, rows]``."""
        batch, count = last.shape
        hidden = torch.arange(rows, device=self.device) > last.view(batch, 1, count, 1, 1)
        zeros = torch.zeros(
            (batch, 1, count, self._group, rows), dtype=self._dtype, device=self.device
        )
        return zeros.masked_fill_(hidden, -torch.inf).view(batch, 1, count * self._group, rows)

    def _triangle(self, count: int, before: int) -> Tensor:
        shape = (count, before + count)
        seen = torch.ones(shape, dtype=torch.bool, device=self.device).tril_(before)
        return self._additive(seen)

    def _additive(self, seen: Tensor) -> Tensor:
        zeros = torch.zeros(seen.shape, dtype=self._dtype, device=seen.device)
        return zeros.masked_fill_(~seen, -torch.inf)


class Alone:
    """One sequence, whose last tokens may be a tree.

    Keys and values are written for all its rows; queries are all, or the last that are asked for.
    """

    count = 1

    def __init__(
        self, heads: Heads, masks: Masks, cache: SlabCache, count: int, tree: Tree | None = None
    ) -> None:
        self._heads, self._masks, self._parts = heads, masks, heads.parts
        self.rows, self._tree = count, tree
        self._end, self._fixed = cache.length + count, cache.fixed_capacity
        self._fresh, self._shown = cache.views(count)
        self.ask([count])

    def ask(self, keeps: Sequence[int]) -> None:
        """See `Reader.ask`."""
        (keep,) = keeps
        self.kept = slice(self.rows - keep, None)
        self._all = keep == self.rows
        before = self._end - keep
        if self._tree is None:
            self._mask = self._masks.of(keep, before, self._fixed)
        else:
            self._mask = self._masks.tree(self._tree, keep, before, self._fixed)
        few = self._heads.read_one if keep == 1 else self._heads.read
        self._read = few if keep <= SHORT else self._heads.read_long

    def attend(self, index: int, joint: Tensor) -> Tensor:
        """See `Reader.attend`."""
        queries, written = joint.split_with_sizes(self._parts, 1)
        fresh = self._fresh[index]
        fresh.copy_(written.view(fresh.shape))
        if not self._all:
            queries = queries[self.kept]
        keys, values = self._shown[2 * index], self._shown[2 * index + 1]
        return self._read(queries, keys, values, self._mask)


class InTurn:
    """Several sequences of few tokens, read one by one; whatever else there is, is done for all.

    A small operation costs more than what it computes: this has two a sequence, and eleven besides.
    """

    def __init__(
        self, heads: Heads, masks: Masks, caches: Sequence[SlabCache], counts: Sequence[int]
    ) -> None:
        self._heads, self._masks, self._parts = heads, masks, heads.parts
        self._counts, self.count, self.rows = list(counts), len(counts), sum(counts)
        self._ends = [cache.length + count for cache, count in zip(caches, counts, strict=True)]
        self._fixed = [cache.fixed_capacity for cache in caches]
        views = [cache.views(count) for cache, count in zip(caches, counts, strict=True)]
        self._fresh = list(zip(*(fresh for fresh, _ in views), strict=True))
        self._shown = list(zip(*(shown for _, shown in views), strict=True))
        self.ask(counts)

    def ask(self, keeps: Sequence[int]) -> None:
        """See `Reader.ask`."""
        each = zip(keeps, self._ends, self._fixed, strict=True)
        self._seen = [self._masks.of(keep, end - keep, fixed) for keep, end, fixed in each]
        self._asked = [keep * self._heads.group for keep in keeps]
        self.kept: slice | Tensor = slice(None)
        if sum(keeps) < self.rows:
            stops = zip(itertools.accumulate(self._counts), keeps, strict=True)
            rows = [row for stop, keep in stops for row in range(stop - keep, stop)]
            self.kept = to_device(rows, self._masks.device)

    def attend(self, index: int, joint: Tensor) -> Tensor:
        """See `Reader.attend`."""
        heads = self._heads
        queries, written = joint.split_with_sizes(self._parts, 1)
        rows = written.view(-1, 2, heads.keys, heads.dim).split_with_sizes(self._counts)
        for fresh, new in zip(self._fresh[index], rows, strict=True):
            fresh.copy_(new)
        if isinstance(self.kept, Tensor):
            queries = queries.index_select(0, self.kept)
        folded = heads.fold(queries).split_with_sizes(self._asked, 2)
        keys, values = self._shown[2 * index], self._shown[2 * index + 1]
        each = zip(folded, keys, values, self._seen, strict=True)
        mixed = [F.scaled_dot_product_attention(q, k, v, attn_mask=mask) for q, k, v, mask in each]
        return heads.unfold(torch.cat(mixed, 2))
