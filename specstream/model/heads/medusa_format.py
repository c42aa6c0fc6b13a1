"""The folder of Medusa heads: its ``config.json`` and the names of its tensors.

Three layouts: the original repository's and text-generation-inference's (``medusa_num_heads``; tensors
``0.0.linear.weight``, ``0.1.weight``, maybe behind ``medusa_head.``), and vLLM's (``model_type`` medusa;
``blocks.0.layers.0.weight``, ``lm_heads.0.weight``, ``token_map``), which is written here, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specstream.errors import ModelBroken, ModelUnsupported

__all__ = ["MedusaShape", "is_medusa", "names"]

_MOST = 32
_LOSSY = {"posterior_alpha", "posterior_threshold", "typical_acceptance"}
_PREFIXES = ("", "medusa_head.", "medusa_heads.")


@dataclass(frozen=True, slots=True)
class MedusaShape:
    """Sizes of Medusa heads.

    Attributes:
        hidden: Size of the target's hidden states.
        vocab_size: Of the target.
        draft_vocab_size: Tokens that can be drafted; ``vocab_size`` for all.
        layers: Residual blocks of each head.
        shared: Whether all heads have one output head.
    """

    hidden: int
    vocab_size: int
    draft_vocab_size: int
    layers: int = 1
    shared: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any], *, hidden: int, vocab_size: int) -> MedusaShape:
        """The shape that a ``config.json`` describes.

        Args:
            config: In one of the layouts.
            hidden: Of the target; the original layout doesn't tell.
            vocab_size: Of the target.

        Raises:
            ModelBroken: a number is none, or makes no sense.
            ModelUnsupported: made for a target of other sizes.
        """

        def number(*keys: str, default: int) -> int:
            found = next((config[key] for key in keys if config.get(key) is not None), default)
            if type(found) is not int or found < 1:
                raise ModelBroken(f"{keys[0]} of the Medusa heads is {found!r}, no size")
            return found

        if lossy := sorted(_LOSSY & config.keys()):
            raise ModelUnsupported(
                f"the Medusa heads ask for typical acceptance ({lossy[0]}), which changes the "
                "distribution of the text and is not offered; take it out of their config.json"
            )
        told = number("hidden_size", default=hidden)
        if told != hidden:
            raise ModelUnsupported(
                f"the Medusa heads were made for another target: they read hidden states of size "
                f"{told}, and this target has {hidden}"
            )
        whole = number("vocab_size", default=vocab_size)
        if whole > vocab_size:
            raise ModelUnsupported(
                f"the Medusa heads were made for another target: they draft among {whole} tokens, and "
                f"this target has {vocab_size}"
            )
        layers = number("medusa_num_layers", "num_hidden_layers", default=1)
        if layers > _MOST:
            raise ModelBroken(f"Medusa heads with {layers} blocks each; {_MOST} at most")
        drafted = number("truncated_vocab_size", default=whole)
        if drafted > whole:
            raise ModelBroken(f"truncated_vocab_size {drafted} is more than vocab_size {whole}")
        return cls(hidden, vocab_size, drafted, layers, bool(config.get("original_lm_head")))

    def config(self, heads: int) -> dict[str, Any]:
        """``config.json`` in vLLM's layout."""
        return {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "hidden_size": self.hidden,
            "vocab_size": self.vocab_size,
            "truncated_vocab_size": self.draft_vocab_size,
            "num_heads": heads,
            "num_hidden_layers": self.layers,
            "original_lm_head": self.shared,
            "medusa_fc_bias": True,
        }


def is_medusa(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` is that of Medusa heads."""
    named = "MedusaModel" in (config.get("architectures") or ())
    return named or "medusa_num_heads" in config or config.get("model_type") == "medusa"


def names(*meant: str) -> list[str]:
    """The names that a tensor may have, with the prefixes of all layouts."""
    return [prefix + name for name in meant for prefix in _PREFIXES]
