"""The ``config.json`` of block-parallel heads (DFlash)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specstream.errors import ModelUnsupported
from specstream.model.heads.base import LayerShape, reading

__all__ = ["MOST_BLOCK", "MOST_LAYERS", "BlockShape"]

MOST_LAYERS, MOST_BLOCK = 64, 64
_UNKNOWN = {
    "markov_rank": "DSpark's Markov correction",
    "enable_confidence_head": "DSpark's confidence head",
    "selector_rank": "DFlash 2's candidate selector",
    "conv_kernel_size": "DFlash 2's convolutions",
    "fc_layernorm": "a norm of each tapped layer",
    "final_logit_softcapping": "soft-capped logits",
}
_SCALES = ("input_embedding_scale", "output_multiplier")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape(LayerShape):
    """Sizes of a DFlash head, whose hidden size is its target's.

    Attributes:
        layers: Number of decoder layers.
        block_size: Tokens of a block, the anchor included.
        mask_token_id: The token that stands for one to be drafted.
        depths: After how many of the target's layers it reads hidden states.
        target_layers: Number of layers of its target; None: the config doesn't say.
        causal: For each layer, whether a token of the block sees only tokens before it.
        windows: For each layer, how many positions back attention reaches; None: all.
    """

    layers: int
    block_size: int
    mask_token_id: int
    depths: tuple[int, ...]
    target_layers: int | None = None
    causal: tuple[bool, ...] = ()
    windows: tuple[int | None, ...] = ()

    @staticmethod
    def fits(config: Mapping[str, Any]) -> bool:
        """Whether ``config`` describes a DFlash head, of whatever version."""
        return "dflash_config" in config or any(
            str(name).startswith("DFlash") for name in config.get("architectures") or ()
        )

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> BlockShape:
        """The shape that a published ``config.json`` describes.

        Raises:
            ModelBroken: a field is missing or out of range.
            ModelUnsupported: the head needs an extension that isn't supported.
        """
        with reading("the block head"):
            joint = {**config, **(config.get("dflash_config") or {})}
            _refuse_extensions(joint)
            return cls._read(joint)

    @classmethod
    def _read(cls, joint: Mapping[str, Any]) -> BlockShape:
        sizes, layers = cls.read(joint), int(joint["num_hidden_layers"])
        kinds = joint.get("layer_types") or ["full_attention"] * layers
        causal, window = joint.get("is_causal"), joint.get("sliding_window")
        sliding = [kind == "sliding_attention" for kind in kinds]
        told = joint.get("num_target_layers")
        made = cls(
            **sizes,
            layers=layers,
            block_size=int(joint.get("block_size", 16)),
            mask_token_id=int(joint["mask_token_id"]),
            # Published ids count layers from 0 and mean a layer's output; a depth is one more than that.
            depths=tuple(int(layer) + 1 for layer in joint["target_layer_ids"]),
            target_layers=None if told is None else int(told),
            causal=tuple(one if causal is None else bool(causal) for one in sliding),
            windows=tuple(int(window or 0) if one else None for one in sliding),
        )
        if not 1 <= layers <= MOST_LAYERS or len(kinds) != layers:
            raise ValueError(f"{layers} layers with {len(kinds)} layer_types")
        if not 2 <= made.block_size <= MOST_BLOCK or not made.depths:
            raise ValueError(f"block_size {made.block_size}, target_layer_ids {made.depths}")
        if any(window is not None and window < 1 for window in made.windows):
            raise ValueError("layers with sliding attention, and no sliding_window")
        if len(set(made.depths)) != len(made.depths):
            raise ValueError("target_layer_ids names a layer twice")
        if (kind := made.rope["rope_type"]) not in ("default", "linear", "llama3"):
            raise ModelUnsupported(
                f"the block head has positions of type {kind!r}, which is not known here"
            )
        return made

    @property
    def config(self) -> dict[str, Any]:
        """The content of ``config.json``, in the published layout."""
        windows = [window for window in self.windows if window is not None]
        return self.written | {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "num_hidden_layers": self.layers,
            "layer_types": [
                "full_attention" if window is None else "sliding_attention"
                for window in self.windows or (None,) * self.layers
            ],
            "sliding_window": windows[0] if windows else None,
            "num_target_layers": self.target_layers,
            "block_size": self.block_size,
            "dflash_config": {
                "mask_token_id": self.mask_token_id,
                "target_layer_ids": [depth - 1 for depth in self.depths],
            },
        }


def _refuse_extensions(config: Mapping[str, Any]) -> None:
    for key, name in _UNKNOWN.items():
        if config.get(key):
            raise ModelUnsupported(f"the block head needs {name} ({key}), which is not known here")
    for key in _SCALES:
        if float(config.get(key) or 1.0) != 1.0:
            raise ModelUnsupported(f"the block head scales by {key}, which is not known here")
