"""Where a pass goes on from tokens whose first layers were computed before it (early-exit drafting)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from specstream.model.forward import Extras, ForwardInput, ForwardOutput
from specstream.model.kv.base import RowCache

__all__ = ["common_depth", "entered_states"]


def common_depth(inputs: Sequence[ForwardInput]) -> int:
    """Return the depth to which inputs are entered; 0 if none is.

    Raises:
        ValueError: the depths differ.
    """
    depths = {item.entered.depth for item in inputs if item.entered is not None}
    if len(depths) > 1:
        raise ValueError(f"the inputs of a pass must be entered to one depth, not {sorted(depths)}")
    return depths.pop() if depths else 0


def entered_states(
    inputs: Sequence[ForwardInput],
    depth: int,
    enter: Callable[[Sequence[ForwardInput], Extras], ForwardOutput],
) -> Tensor:
    """Return all tokens' states ``[N, hidden]`` at ``depth``, the common one of the inputs.

    Tokens without states yet are run through the first layers here, by ``enter``, the decoder. The
    lengths of the caches are the same afterwards.
    """
    caches = [cast(RowCache, item.cache) for item in inputs]
    lengths = [cache.length for cache in caches]
    known = [0 if item.entered is None else item.entered.states.shape[0] for item in inputs]
    fresh = dict[int, ForwardInput]()
    for number, (item, count) in enumerate(zip(inputs, known, strict=True)):
        ids = item.token_ids[count:]
        if ids.shape[0]:
            fresh[number] = ForwardInput(ids, item.cache, ids.shape[0], item.tree)
    found = dict[int, Tensor]()
    try:
        for cache, length, count in zip(caches, lengths, known, strict=True):
            cache.append_to(length + count)
        if fresh:
            made = enter(list(fresh.values()), Extras((depth,), logits=False)).states
            found = dict(zip(fresh, made, strict=True))
    finally:
        for cache, length in zip(caches, lengths, strict=True):
            cache.rollback_to(length)
    joined = list[Tensor]()
    for number, item in enumerate(inputs):
        joined += [] if item.entered is None else [item.entered.states]
        joined += [found[number][:, 0]] if number in found else []
    return torch.cat(joined)  # never a view of `entered`: the layers overwrite their input
