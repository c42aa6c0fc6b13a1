"""How many positions of a model mean the same in every pass."""

from __future__ import annotations

from collections.abc import Mapping

from transformers import PretrainedConfig

__all__ = ["declared_positions", "steady_positions"]

_UNBOUNDED = 2**31


def declared_positions(config: PretrainedConfig) -> int:
    """Positions that the model's config declares."""
    text = config.get_text_config()
    return int(getattr(text, "max_position_embeddings", 0) or _UNBOUNDED)


def steady_positions(config: PretrainedConfig) -> int:
    """Positions with one set of rotary factors.

    transformers chooses the factors of "longrope" by the highest position of a *pass*: past the
    original length all its rows are rotated otherwise than those in the cache, so the logits would
    depend on how tokens were divided into passes. ("dynamic" factors do the same past the declared
    length, where a context ends anyway.)
    """
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, Mapping))]
    lengths = [
        int(kind.get("original_max_position_embeddings") or _UNBOUNDED)
        for kind in kinds
        if kind.get("rope_type") == "longrope"
    ]
    return min(lengths, default=_UNBOUNDED)
