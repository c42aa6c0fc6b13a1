"""What tests of fused kernels share: batches in a pool full of NaN, and attention written out."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from specstream.model.attention.base import Ragged

pytest.importorskip("triton", reason="fused kernels need Triton")

_TOO_NEW = tuple(int(part) for part in np.__version__.split(".")[:2]) >= (2, 4)

interpreted = [
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") != "1", reason="set TRITON_INTERPRET=1 to run kernels"
    ),
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning"),
]
looping = [
    *interpreted,
    pytest.mark.skipif(_TOO_NEW, reason="Triton's interpreter needs numpy < 2.4 to run a loop"),
]


@dataclass(frozen=True)
class Appended:
    """A sequence's new tokens behind ``before`` rows, of which the last ones form a tree."""

    before: int
    chain: int  # new tokens before the tree's
    parents: Sequence[int] = ()  # of the tree's nodes; -1 for the last token of the chain

    @property
    def count(self) -> int:
        return self.chain + len(self.parents)

    @property
    def limits(self) -> list[int]:
        trunk = self.before + self.chain
        return [*range(self.before + 1, trunk + 1), *[trunk] * len(self.parents)]

    @property
    def nodes(self) -> list[int]:
        """Signed 64-bit words: each node's ancestors and itself."""
        words = list[int]()
        for node, parent in enumerate(self.parents):
            words.append((words[parent] if parent >= 0 else 0) | 1 << node)
        return [0] * self.chain + [w - (1 << 64) if w >> 63 else w for w in words]


@dataclass(frozen=True)
class Pass:
    """The arguments of `attend`."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    places: Ragged


def tree(size: int, seed: int = 0) -> list[int]:
    """Parents of a random tree, with several roots; the last node is on a long path."""
    noise = np.random.default_rng(seed)
    return [int(noise.integers(max(-1, node - 4), node)) for node in range(size)]


def make_pass(
    sequences: Sequence[Appended], heads: int, kv_heads: int, dim: int, dtype: torch.dtype
) -> Pass:
    """Lay sequences into slots in reverse order, with gaps; all other rows are NaN."""
    noise = torch.Generator().manual_seed(len(sequences) + dim)
    ends = [each.before + each.count for each in sequences]
    pool = torch.full((2, sum(ends) + 7 * len(ends), kv_heads, dim), torch.nan, dtype=dtype)
    starts, at = list[int](), 3
    for end in reversed(ends):
        starts.insert(0, at)
        pool[:, at : at + end] = torch.randn(2, end, kv_heads, dim, generator=noise).to(dtype)
        at += end + 5
    total = sum(each.count for each in sequences)
    # A view, as of the joint product for queries, keys and values.
    joint = torch.randn(total, heads + 2 * kv_heads, dim, generator=noise).to(dtype)

    def made(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32)

    counts = [each.count for each in sequences]
    nodes = [word for each in sequences for word in each.nodes]
    places = Ragged(
        torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32),
        made([*starts, 0]),
        made(ends),
        made([limit for each in sequences for limit in each.limits]),
        torch.tensor(nodes) if any(nodes) else None,
        max(counts),
        max(ends),
    )
    return Pass(2 * joint[:, :heads], pool[0], pool[1], places)


def written_out(made: Pass) -> Tensor:
    """Attention in float64, one query at a time: ``[T, heads, head_dim]``."""
    places, group = made.places, made.queries.shape[1] // made.keys.shape[1]
    starts, found = places.query_starts.tolist(), list[Tensor]()
    for sequence, first in enumerate(places.key_starts.tolist()[:-1]):
        for token in range(starts[sequence], starts[sequence + 1]):
            limit = int(places.limits[token])
            word = 0 if places.nodes is None else int(places.nodes[token])
            rows = [*range(limit), *(limit + j for j in range(64) if word >> j & 1)]
            at = torch.tensor(rows) + first
            key, value = (x[at].double().repeat_interleave(group, 1) for x in (made.keys, made.values))
            scores = torch.einsum("hd,mhd->hm", made.queries[token].double(), key)
            weights = (scores * made.queries.shape[2] ** -0.5).softmax(-1)
            found.append(torch.einsum("hm,mhd->hd", weights, value))
    return torch.stack(found)
