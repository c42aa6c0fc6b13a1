"""The number of positions that a model supports, and that get the same rotary angles in every pass."""

from __future__ import annotations

from collections.abc import Mapping

from transformers import PretrainedConfig

__all__ = ["declared_positions", "steady_positions"]

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
