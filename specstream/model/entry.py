"""Tokens whose first layers were computed before the pass that verifies them (early-exit drafting)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specstream.model.attention.base import Batch

__all__ = ["Entered", "common_depth", "entered_states"]


@dataclass(frozen=True, slots=True)
class Entered:
    """Hidden states of an input's first tokens, which a pass without logits computed.

    That pass (`Extras.logits`) left the tokens' keys and values of the first layers in the sequence's
    cache, behind its valid rows. No other pass over the sequence may run before these states are used.

    Attributes:
        at: Length of the cache before that pass: the row of the first of these tokens.
        depth: Number of layers that have been computed, at least 1.
        states: ``[m, hidden]`` after those layers, m >= 1.
    """

    at: int
    depth: int
    states: Tensor

    def fits(self, length: int, count: int) -> bool:
        """Whether these tokens can be the first of ``count`` tokens behind ``length`` valid rows."""
        return self.at == length and 0 < self.states.shape[0] <= count


def common_depth(entered: Sequence[Entered | None]) -> int:
    """Return the depth that all entries but None share; 0 if all are None.

    Raises:
        ValueError: the depths differ.
    """
    depths = {one.depth for one in entered if one is not None}
    if len(depths) > 1:
        raise ValueError(f"the inputs of a pass must be entered to one depth, not {sorted(depths)}")
    return depths.pop() if depths else 0


def entered_states(
    tokens: Tensor,
    batch: Batch,
    entered: Sequence[Entered | None],
    enter: Callable[..., Tensor],
) -> Tensor:
    """Return all tokens' states ``[N, hidden]`` at the common depth of ``entered``.

    Tokens without states yet are run through the first layers here.

    Args:
        tokens: ``[N]`` int64, of all sequences.
        batch: The pass; the lengths of its caches are the same afterwards.
        entered: Per sequence the known states of its first tokens, or None.
        enter: `Decoder.__call__` stopped at that depth; gets tokens, caches, counts, keeps and trees.
    """
    caches, lengths = batch.caches, [cache.length for cache in batch.caches]
    known = [0 if one is None else one.states.shape[0] for one in entered]
    each = zip(tokens.split_with_sizes(list(batch.counts)), known, strict=True)
    rest = [part[count:] for part, count in each]
    fresh = [number for number, part in enumerate(rest) if part.shape[0]]
    found = dict[int, Tensor]()
    try:
        for cache, length, count in zip(caches, lengths, known, strict=True):
            cache.append_to(length + count)
        if fresh:
            sizes = [rest[number].shape[0] for number in fresh]
            trees = None if batch.trees is None else [batch.trees[number] for number in fresh]
            ids = torch.cat([rest[number] for number in fresh])
            states = enter(ids, [caches[number] for number in fresh], sizes, None, trees)
            found = dict(zip(fresh, states.split_with_sizes(sizes), strict=True))
    finally:
        for cache, length in zip(caches, lengths, strict=True):
            cache.rollback_to(length)
    joined = list[Tensor]()
    for number, one in enumerate(entered):
        joined += [] if one is None else [one.states]
        joined += [found[number]] if number in found else []
    return torch.cat(joined)  # never a view of `entered`: the layers overwrite their input
