"""How far a model's positions mean the same in every pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig

__all__ = ["declared_positions", "steady_positions"]

_UNBOUNDED = 2**31


def declared_positions(config: PretrainedConfig) -> int:
    """How many positions the model says that it has."""
    text = config.get_text_config()
    return int(getattr(text, "max_position_embeddings", 0) or _UNBOUNDED)


def steady_positions(config: PretrainedConfig) -> int:
    """How many positions have one set of rotary factors.

    transformers chooses the factors of "longrope" by the highest position of a *pass*: once that is
    past the original length, all of its rows turn otherwise than those that are in the cache, and
    the logits depend on how tokens were divided into passes. ("dynamic" factors do the same past the
    declared length, where a context ends anyway.)
    """
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    kinds: list[Mapping[str, Any]] = [rope, *(v for v in rope.values() if isinstance(v, Mapping))]
    originals = [
        kind.get("original_max_position_embeddings")
        for kind in kinds
        if kind.get("rope_type") == "longrope"
    ]
    return min([int(n) for n in originals if n], default=_UNBOUNDED)
