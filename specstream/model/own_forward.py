"""Passes by a model's own forward, and the positions that it supports."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import cast

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from specstream.model.forward import ForwardInput
from specstream.model.kv.transformers import TransformersCache
from specstream.model.numerics import to_device
from specstream.model.tree import Tree, positions_of

__all__ = ["cache_argument", "declared_positions", "own_forward", "steady_positions"]


def cache_argument(model: PreTrainedModel) -> str:
    """Return the name of the argument by which a model's forward takes its cache.

    ``past_key_values``, or from transformers 5.24 on ``cache``; a model class written for an older
    version may know the older name only.
    """
    return _declared(type(model).forward)


@cache
def _declared(forward: Callable[..., object]) -> str:
    taken = inspect.signature(forward).parameters
    return "cache" if "cache" in taken and "past_key_values" not in taken else "past_key_values"


def own_forward(model: PreTrainedModel, item: ForwardInput) -> Tensor:
    """Append an input's tokens to its cache; return logits ``[keep, V]`` of the model's own width."""
    rows, more = cast(TransformersCache, item.cache), dict[str, object]()
    if item.tree is not None:
        more |= _tree_inputs(model, rows.length, item.token_ids.shape[0], item.tree)
    more[cache_argument(model)] = rows.transformers
    logits: Tensor = model(
        input_ids=item.token_ids.unsqueeze(0),
        use_cache=True,
        logits_to_keep=item.keep,
        **more,
    ).logits
    return logits[0, -item.keep :]


def _tree_inputs(model: PreTrainedModel, before: int, count: int, tree: Tree) -> dict[str, Tensor]:
    """A tree's positions ``[1, n]`` and additive mask ``[1, 1, n, rows]``, in transformers' form."""
    seen = tree.seen_behind(before, count, before + count, model.device)
    mask = torch.zeros(seen.shape, dtype=model.dtype, device=model.device)
    positions = to_device(positions_of(before, count, tree), model.device)
    return {
        "position_ids": positions.unsqueeze(0),
        "attention_mask": mask.masked_fill_(~seen, torch.finfo(model.dtype).min)[None, None],
    }


_UNBOUNDED = 2**31


def declared_positions(config: PretrainedConfig) -> int:
    """Return the number of positions that the config declares; practically unbounded if none."""
    text = config.get_text_config()
    return int(getattr(text, "max_position_embeddings", 0) or _UNBOUNDED)


def steady_positions(config: PretrainedConfig) -> int:
    """Return the number of positions, from 0, whose rotary factors are the same in every pass.

    transformers chooses the "longrope" factors by the highest position of a *pass*. Past the original
    length it rotates all rows of the pass by other factors than the rows in the cache, so the logits
    would depend on how tokens are divided into passes. ("dynamic" factors change past the declared
    length, where the context ends anyway.)
    """
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, Mapping))]
    lengths = [
        int(kind.get("original_max_position_embeddings") or _UNBOUNDED)
        for kind in kinds
        if kind.get("rope_type") == "longrope"
    ]
    return min(lengths, default=_UNBOUNDED)
