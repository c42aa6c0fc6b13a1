"""The published layouts of EAGLE-3 heads: how their ``config.json`` is read and written.

Two conventions number the layers whose states are read. ``eagle_aux_hidden_state_layer_ids`` at the top
level (vLLM, speculators) counts states that *enter* a layer: id i is the state after i layers. The same
key inside ``eagle_config`` (SpecForge, SGLang) counts states that *leave* a layer: id i is the state
after i + 1 layers. Without either key all of them read the states after 2, L // 2 and L - 3 of L layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specstream.errors import ModelUnsupported
from specstream.model.heads.base import LayerShape, reading

__all__ = ["EagleShape", "default_depths", "is_eagle", "read_shape"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleShape(LayerShape):
    """Sizes and variants of an EAGLE-3 head; even with biases in attention ``o_proj`` has none.

    Attributes:
        target_hidden: Size of the target's hidden states.
        draft_vocab_size: Number of tokens that it can draft.
        depths: After how many of the target's layers it reads hidden states.
        norm_before_residual: The layer adds its results to the normed feature, not to the feature.
        fc_norm: Each of the states that are read has a norm of its own before ``fc`` (EAGLE 3.1).
        norm_before_fc: The states share one norm before ``fc``, over their concatenation.
        norm_output: The next level of a draft reads the normed output (EAGLE 3.1).
    """

    target_hidden: int
    draft_vocab_size: int
    depths: tuple[int, ...]
    norm_before_residual: bool = False
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_output: bool = False

    @property
    def config(self) -> dict[str, Any]:
        """``config.json`` in the layout of the original repository and of SpecForge."""
        return self.written | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "target_hidden_size": self.target_hidden,
            "num_hidden_layers": 1,
            "draft_vocab_size": self.draft_vocab_size,
            "mlp_bias": False,
            "norm_before_residual": self.norm_before_residual,
            "fc_norm": self.fc_norm,
            "norm_before_fc": self.norm_before_fc,
            "norm_output": self.norm_output,
            "eagle_aux_hidden_state_layer_ids": list(self.depths),
            "eagle_config": {
                "eagle_aux_hidden_state_layer_ids": [depth - 1 for depth in self.depths],
                "use_aux_hidden_state": True,
            },
        }


def default_depths(layers: int) -> tuple[int, ...]:
    """The depths that are read if a config names none: after 2, half and all but 3 of the layers."""
    return min(2, layers), layers // 2, max(layers - 3, 1)


def is_eagle(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` describes an EAGLE-3 head."""
    named = config.get("speculators_model_type") or _part(config, "speculators_config").get(
        "algorithm"
    )
    if named is not None:
        return named in ("eagle3", "peagle")
    if any("eagle3" in str(name).lower() for name in config.get("architectures") or ()):
        return True
    # The original repository's config is a Llama's with one additional key, draft_vocab_size.
    other = {"dflash_config", "block_size", "medusa_num_heads", "speculators_version"} & set(config)
    return config.get("model_type") == "llama" and "draft_vocab_size" in config and not other


def read_shape(config: Mapping[str, Any], *, hidden: int, layers: int) -> EagleShape:
    """The shape of the head that a ``config.json`` describes.

    Args:
        config: In the layout of the original repository, of SpecForge or of speculators.
        hidden: Size of the target's hidden states, used if the config doesn't have it.
        layers: The target's number of layers.

    Raises:
        ModelBroken: a field is missing or out of range.
        ModelUnsupported: the head is of a variant that is not supported.
    """
    with reading("the EAGLE head"):
        speculators = "transformer_layer_config" in config
        layer = _part(config, "transformer_layer_config") if speculators else config
        more = _part(config, "eagle_config")
        _refuse(config, layer)
        sizes = LayerShape.read(layer)
        norm_before_fc = config.get("norm_before_fc", more.get("norm_before_fc", False))
        return EagleShape(
            **sizes,
            target_hidden=int(config.get("target_hidden_size") or hidden),
            draft_vocab_size=int(config.get("draft_vocab_size") or sizes["vocab_size"]),
            depths=_depths(config, more) or default_depths(layers),
            norm_before_residual=bool(config.get("norm_before_residual", speculators)),
            fc_norm=bool(config.get("fc_norm", False)),
            norm_before_fc=bool(norm_before_fc),
            norm_output=bool(config.get("norm_output", False)),
        )


def _depths(config: Mapping[str, Any], more: Mapping[str, Any]) -> tuple[int, ...]:
    entering = config.get("eagle_aux_hidden_state_layer_ids")
    leaving = more.get("eagle_aux_hidden_state_layer_ids")
    if entering:
        return tuple(int(one) for one in entering)
    return tuple(int(one) + 1 for one in leaving or ())


def _refuse(config: Mapping[str, Any], layer: Mapping[str, Any]) -> None:
    """Refuse variants whose weights would load but be computed wrongly."""
    if config.get("mask_token_id") is not None or config.get("speculators_model_type") == "peagle":
        raise ModelUnsupported(
            "this is a P-EAGLE head (mask_token_id), which drafts all tokens in one pass; only heads "
            "that draft token by token are supported"
        )
    if int(layer.get("num_hidden_layers") or 1) != 1:
        raise ModelUnsupported("only EAGLE heads of one layer are supported")
    kind = layer.get("model_type", "llama")
    if kind != "llama":
        raise ModelUnsupported(f"only EAGLE heads with a Llama layer are supported, not {kind}")


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}
