"""Random problems for `specstream.bench.exactness.enumeration`."""

from typing import Literal

import torch

from specstream.bench.exactness.enumeration import Table

__all__ = ["KINDS", "Kind", "random_table"]

Kind = Literal["dense", "zeros", "one-hot", "low", "high"]
KINDS: tuple[Kind, ...] = ("dense", "zeros", "one-hot", "low", "high")


def random_table(
    kind: Kind, vocab_size: int, depth: int, count: int, generator: torch.Generator
) -> Table:
    """``count`` random tables with contexts of up to ``depth`` tokens.

    ``low`` and ``high`` put all mass on the lower or the upper half: together, disjoint supports.
    """
    levels = []
    half = vocab_size // 2
    for level in range(depth + 1):
        shape = (count, vocab_size**level, vocab_size)
        uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
        weights = -uniform.clamp_min(1e-300).log()
        weights = weights**2  # uneven: some tokens rare, some common
        if kind == "zeros":
            drop = torch.rand(shape, generator=generator) < 0.5
            drop.scatter_(-1, weights.argmax(-1, keepdim=True), False)
            weights = weights.masked_fill(drop, 0)
        elif kind == "one-hot":
            weights = torch.zeros_like(weights).scatter_(-1, weights.argmax(-1, keepdim=True), 1)
        elif kind == "low":
            weights[..., half:] = 0
        elif kind == "high":
            weights[..., :half] = 0
        levels.append(weights / weights.sum(-1, keepdim=True))
    return levels
