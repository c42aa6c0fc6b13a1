"""The ``config.json`` and the tensor names of Medusa heads.

Three layouts are read: those of the original repository and of text-generation-inference
(``medusa_num_heads``; tensors ``0.0.linear.weight``, ``0.1.weight``, maybe with the prefix
``medusa_head.``), and vLLM's (``model_type`` medusa; ``blocks.0.layers.0.weight``,
``lm_heads.0.weight``, ``token_map``), in which heads are also written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specstream.errors import ModelBroken, ModelUnsupported
from specstream.model.heads.base import check_made_for, number

__all__ = ["MedusaShape", "is_medusa", "plain_name"]

_MAX_BLOCKS = 32  # residual blocks of a head
_LOSSY = {"posterior_alpha", "posterior_threshold", "typical_acceptance"}


@dataclass(frozen=True, slots=True)
class MedusaShape:
    """Sizes of Medusa heads.

    Attributes:
        hidden: Size of the target's hidden states.
        vocab_size: Size of the target's vocabulary.
        draft_vocab_size: Number of tokens that can be drafted; ``vocab_size`` if all can.
        layers: Residual blocks of each head.
        shared: Whether all heads share one output head.
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
            hidden: The target's hidden size, which the original layout doesn't have.
            vocab_size: Size of the target's vocabulary.

        Raises:
            ModelBroken: a size isn't a positive whole number, or is out of range.
            ModelUnsupported: the heads were made for a target of other sizes.
        """
        if lossy := sorted(_LOSSY & config.keys()):
            raise ModelUnsupported(
                f"the Medusa heads ask for typical acceptance ({lossy[0]}), which changes the "
                "distribution of the text and is not offered; take it out of their config.json"
            )
        title = "the set of Medusa heads"
        told = number(config, "hidden_size", default=hidden)
        check_made_for(title, ("hidden states of size", told, hidden))
        whole = number(config, "vocab_size", default=vocab_size)
        if whole > vocab_size:  # fewer are no reason: a target's vocabulary may be padded
            check_made_for(title, ("a vocabulary of", whole, vocab_size))
        layers = number(config, "medusa_num_layers", "num_hidden_layers", default=1)
        if layers > _MAX_BLOCKS:
            raise ModelBroken(f"Medusa heads with {layers} blocks each; {_MAX_BLOCKS} at most")
        drafted = number(config, "truncated_vocab_size", default=whole)
        if drafted > whole:
            raise ModelBroken(f"truncated_vocab_size {drafted} is more than vocab_size {whole}")
        return cls(hidden, vocab_size, drafted, layers, bool(config.get("original_lm_head")))

    def config(self, heads: int) -> dict[str, Any]:
        """The content of ``config.json``, in vLLM's layout."""
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
    """Whether a ``config.json`` describes Medusa heads."""
    named = "MedusaModel" in (config.get("architectures") or ())
    return named or "medusa_num_heads" in config or config.get("model_type") == "medusa"


def plain_name(name: str) -> str:
    """The name in vLLM's layout of a tensor in any layout."""
    name = re.sub(r"^medusa_heads?\.", "", name)
    name = re.sub(r"^(\d+)\.(\d+)\.linear\.", r"blocks.\1.layers.\2.", name)
    return re.sub(r"^(\d+)\.\d+\.weight$", r"lm_heads.\1.weight", name)
