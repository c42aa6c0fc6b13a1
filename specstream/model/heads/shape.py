"""Sizes of a head's decoder layers, by the fields of a Llama's or a Qwen3's ``config.json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from specstream.errors import ModelBroken, ModelUnsupported

__all__ = ["LayerShape", "check_made_for", "number", "reading"]


@contextmanager
def reading(title: str) -> Iterator[None]:
    """Within this context the ``config.json`` of a head is read, which messages call ``title``.

    Raises:
        ModelBroken: a field is missing, of another type or out of range.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ModelBroken(f"the config.json of {title} is damaged: {error!r}") from None


def number(config: Mapping[str, Any], *names: str, default: int | None = None) -> int:
    """Read a size from a head's ``config.json``: the first of ``names`` that it has.

    Raises:
        ModelBroken: it is missing and has no default, or is not a positive whole number.
    """
    found = next((config[name] for name in names if config.get(name) is not None), default)
    if type(found) is not int or found < 1:
        raise ModelBroken(
            f"the head's config.json should have a number {names[0]!r}, not {found!r}"
        )
    return found


def check_made_for(title: str, *facts: tuple[str, int, int]) -> None:
    """Refuse a head whose sizes show that it was made for another target.

    Equal sizes don't prove that the head was made for this target.

    Args:
        title: The head's name in the message.
        facts: Each a thing that the head reads, the head's number for it, and the target's.

    Raises:
        ModelUnsupported: two numbers differ; names the first such fact.
    """
    for what, made, found in facts:
        if made != found:
            raise ModelUnsupported(
                f"{title} was made for another target: it reads {what} {made}, and this target has "
                f"{found}; choose a head of this target"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """Sizes that all decoder layers of a head have in common.

    Attributes:
        hidden: Size of the hidden states.
        intermediate: Size of the MLP's inner states.
        vocab_size: Tokens of the target's vocabulary.
        eps: Epsilon of the norms.
        rope: ``rope_parameters`` of the config.
        bias: Whether the matrices of attention have biases.
    """

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    eps: float = 1e-6
    max_positions: int = 32768
    activation: str = "silu"
    rope: Mapping[str, Any] = field(default_factory=lambda: {"rope_type": "default"})
    bias: bool = False

    @staticmethod
    def read(config: Mapping[str, Any]) -> dict[str, Any]:
        """Read these fields, by name, from a ``config.json``.

        Raises:
            ModelBroken: a size is missing, or not a positive whole number.
            TypeError, ValueError, OverflowError: another field is damaged.
        """
        hidden, heads = number(config, "hidden_size"), number(config, "num_attention_heads")
        rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
        rope.setdefault("rope_theta", float(config.get("rope_theta", 10000.0)))
        rope.setdefault("rope_type", rope.pop("type", "default"))
        kv_heads = int(config.get("num_key_value_heads") or heads)
        head_dim = int(config.get("head_dim") or hidden // heads)
        if min(kv_heads, head_dim) < 1 or heads % kv_heads:
            raise ValueError(f"{heads} heads, {kv_heads} key heads of {head_dim}")
        eps = float(config.get("rms_norm_eps", 1e-6))
        if not 0.0 <= eps < float("inf"):
            raise ValueError(f"rms_norm_eps {eps}")
        return {
            "hidden": hidden,
            "intermediate": number(config, "intermediate_size"),
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "vocab_size": number(config, "vocab_size"),
            "eps": eps,
            "max_positions": int(config.get("max_position_embeddings") or 32768),
            "activation": str(config.get("hidden_act", "silu")),
            "rope": rope,
            "bias": bool(config.get("attention_bias", False)),
        }

    @property
    def written(self) -> dict[str, Any]:
        """These fields as they are written to a ``config.json``."""
        return {
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "rms_norm_eps": self.eps,
            "max_position_embeddings": self.max_positions,
            "hidden_act": self.activation,
            "rope_parameters": dict(self.rope),
            "rope_theta": self.rope.get("rope_theta", 10000.0),
            "attention_bias": self.bias,
            "tie_word_embeddings": False,
        }
