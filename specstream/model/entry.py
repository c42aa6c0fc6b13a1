"""Tokens that the first layers have read before the pass that verifies them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specstream.model.attention.base import Batch

__all__ = ["Entered", "common_depth", "entered_states"]


@dataclass(frozen=True, slots=True)
class Entered:
    """The first tokens of an input, which have been through the first layers already.

    Their keys and values of these layers are in the sequence's cache, behind its valid rows, where a
    pass without logits (`Extras.logits`) has written them; no pass over the sequence may have come
    between.

    Attributes:
        at: The cache's length then: the row of the first of them.
        depth: How many layers they have been through, at least 1.
        states: ``[m, hidden]`` after those layers, m >= 1.
    """

    at: int
    depth: int
    states: Tensor

    def fits(self, length: int, count: int) -> bool:
        """Whether they are the first of ``count`` tokens behind ``length`` valid rows."""
        return self.at == length and 0 < self.states.shape[0] <= count


def common_depth(entered: Sequence[Entered | None]) -> int:
    """The depth of those that are there; 0 if none is.

    Raises:
        ValueError: there are several.
    """
    depths = {one.depth for one in entered if one is not None}
    if len(depths) > 1:
        raise ValueError(f"the inputs of a pass have entered to one depth, not {sorted(depths)}")
    return depths.pop() if depths else 0


def entered_states(
    tokens: Tensor,
    batch: Batch,
    entered: Sequence[Entered | None],
    enter: Callable[..., Tensor],
) -> Tensor:
    """All tokens' states ``[N, hidden]`` at the depth to which some of them have entered before.

    Args:
        tokens: ``[N]`` int64, of all sequences.
        batch: The pass; its caches are left as they are.
        entered: For each sequence.
        enter: `Decoder.__call__` up to that depth: of tokens, caches, counts, keeps and trees.
    """
    parts = list[Tensor]()
    for one, part in zip(entered, tokens.split_with_sizes(list(batch.counts)), strict=True):
        parts.append(part if one is None else part[one.states.shape[0] :])
    fresh = [number for number, part in enumerate(parts) if part.shape[0]]
    starts = [cache.length for cache in batch.caches]
    found = dict[int, Tensor]()
    try:
        for cache, one in zip(batch.caches, entered, strict=True):
            cache.append_to(cache.length + (0 if one is None else one.states.shape[0]))
        if fresh:
            sizes = [parts[number].shape[0] for number in fresh]
            trees = None if batch.trees is None else [batch.trees[number] for number in fresh]
            ids = torch.cat([parts[number] for number in fresh])
            caches = [batch.caches[number] for number in fresh]
            states = enter(ids, caches, sizes, None, trees)
            found = dict(zip(fresh, states.split_with_sizes(sizes), strict=True))
    finally:
        for cache, start in zip(batch.caches, starts, strict=True):
            cache.rollback_to(start)
    joined = list[Tensor]()
    for number, one in enumerate(entered):
        joined += [] if one is None else [one.states]
        joined += [found[number]] if number in found else []
    return torch.cat(joined)  # a copy in any case: layers write into what they get
