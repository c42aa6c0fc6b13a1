"""Block-parallel heads (DFlash, arXiv 2602.06036): one pass drafts a whole block of tokens.

A block is the last committed token, its *anchor*, and a mask token for each token to be drafted. The
head's few decoder layers read the whole block at once. The text before it is present as keys and values
that are made from the target's hidden states, one row for each token that the target has read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specstream.errors import ModelUnsupported
from specstream.model.attention.contiguous import ContiguousAttention, Heads
from specstream.model.heads.base import Context, LayerShape, check_made_for, read_head_config, reading
from specstream.model.heads.layer import (
    FleetingPlan,
    folded_mask,
    head_weights,
    layer_weights,
    rotary_of,
)
from specstream.model.heads.tensors import Placed, Tensors
from specstream.model.kv import ContiguousCache
from specstream.model.layers import Norm, layer_of, rms_norm, rotated
from specstream.model.numerics import to_device
from specstream.model.runner import ModelRunner

__all__ = ["MOST_BLOCK", "MOST_LAYERS", "BlockHead", "BlockShape", "load"]

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


class BlockHead:
    """A block head, ready to draft with its target's embedding and output head.

    Args:
        shape: Sizes.
        tensors: Its weights, under the published names.
        target: The model that it drafts for.

    Attributes:
        rotary: The table of its rotary embedding.

    Raises:
        ModelBroken: a tensor is missing or has another shape.
        ModelUnsupported: it was made for another target.
    """

    kind = "block"

    def __init__(self, shape: BlockShape, tensors: Tensors, target: ModelRunner) -> None:
        _check(shape, target)
        self.shape, self.depths, self.device = shape, shape.depths, target.device
        self._target = target
        decoder, hidden = target.decoder, shape.hidden
        take = Placed(tensors, decoder.weights.embedding)

        norms: Callable[..., Norm] = partial(rms_norm, eps=shape.eps)
        products = decoder.products
        self._fc = products(take("fc.weight", hidden, len(shape.depths) * hidden))
        self._feature_norm = norms(take("hidden_norm.weight", hidden))
        each = [
            layer_weights(
                lambda name, *sizes, at=index: take(f"layers.{at}.{name}", *sizes),
                shape,
                lambda name: shape.bias or not name.endswith("bias"),
            )
            for index in range(shape.layers)
        ]
        self._weights = sizes = head_weights(shape, decoder.weights, each)
        self._norm = norms(take("norm.weight", hidden))
        self.parameters, self.nbytes = take.parameters, take.nbytes
        self._layers = [layer_of(sizes, one, norms, products) for one in each]
        first = sizes.heads * sizes.head_dim  # of a layer's keys and values, behind its queries
        biases = [one.qkv_bias[first:] for one in each if one.qkv_bias is not None]
        joint = torch.cat([one.qkv[first:] for one in each])
        self._keys_values = products(joint, torch.cat(biases) if biases else None)
        self._key_norms = [norms(one.key_norm) for one in each]
        self.rotary = rotary_of(shape, sizes.embedding)
        self._heads = Heads(shape.heads, shape.kv_heads, shape.head_dim)

    def new_cache(self) -> ContiguousCache:
        """The empty cache of a context."""
        return ContiguousAttention(self._weights).new_cache()

    def read(self, contexts: Sequence[Context], states: Sequence[Tensor]) -> None:
        """Append rows to each context, made from the target's states ``[n, depths, hidden]`` for it."""
        counts = [one.shape[0] for one in states]
        joint = states[0] if len(states) == 1 else torch.cat(list(states))
        features = self._feature_norm(self._fc(joint.flatten(1)))
        each = zip(contexts, counts, strict=True)
        cos, sin = self.rotary.at([at for one, n in each for at in range(one.end, one.end + n)])
        keys, dim = self._weights.kv_heads, self._weights.head_dim
        made = self._keys_values(features).view(-1, len(self._key_norms), 2 * keys, dim)
        for index, norm in enumerate(self._key_norms):
            turned = rotated(norm(made[:, index, :keys]), cos, sin)
            whole = torch.cat([turned, made[:, index, keys:]], 1)
            for one, rows in zip(contexts, whole.split_with_sizes(counts), strict=True):
                fresh = one.cache.views(rows.shape[0])[0][index]
                fresh.copy_(rows.view(fresh.shape))
        for one, count in zip(contexts, counts, strict=True):
            one.cache.append_to(one.cache.length + count)

    def block(self, contexts: Sequence[Context], anchors: Sequence[int], keeps: Sequence[int]) -> Tensor:
        """Logits ``[sum(keeps), V]`` of the tokens after each anchor; leaves the contexts unchanged.

        Args:
            contexts: The rows of each sequence, up to the token before its anchor.
            anchors: The last token of each sequence.
            keeps: How many tokens of each block are wanted, from 1 to ``block_size - 1``.
        """
        size = self.shape.block_size
        ids = [[anchor] + [self.shape.mask_token_id] * (size - 1) for anchor in anchors]
        x = F.embedding(to_device(ids, self.device).flatten(), self._weights.embedding)
        places = [at for one in contexts for at in range(one.end, one.end + size)]
        cos, sin = self.rotary.at(places)
        plan = _BlockPlan(self._heads, self.shape, contexts, keeps)
        last = len(self._layers) - 1
        for index, layer in enumerate(self._layers):
            x = layer(x, cos, sin, plan, index, plan.narrow() if index == last else None)
        return self._target.head_logits(self._norm(x))


class _BlockPlan(FleetingPlan):
    """Blocks, whose tokens see the context and each other."""

    def __init__(
        self, heads: Heads, shape: BlockShape, contexts: Sequence[Context], keeps: Sequence[int]
    ) -> None:
        self._size, self._keeps = shape.block_size, keeps
        self._kinds = list(zip(shape.causal, shape.windows, strict=True))
        caches = [one.cache for one in contexts]
        ends = [cache.length for cache in caches]
        super().__init__(heads, caches, ends, [self._size] * len(caches))

    def narrow(self) -> Tensor:
        """See `AttentionPlan.narrow`: the wanted tokens are the first ones after each anchor."""
        self.asked = [range(1, 1 + keep) for keep in self._keeps]
        starts = range(0, self._size * len(self.asked), self._size)
        rows = [start + row for start, asked in zip(starts, self.asked, strict=True) for row in asked]
        return to_device(rows, self._layers[0][0].device)

    def mask(self, layer: int, number: int) -> Tensor | None:
        """See `FleetingPlan.mask`."""
        causal, window = self._kinds[layer]
        before, asked = self._ends[number], self.asked[number]
        rows = before + self._size
        reach = rows if window is None else window
        if not causal and reach >= rows:
            return None
        queries = torch.arange(asked.start, asked.stop).unsqueeze(1) + before
        gaps = queries - torch.arange(rows)
        seen = gaps.abs() < reach
        if causal:
            seen &= gaps >= 0
        like = self._layers[number][0]
        return folded_mask(seen, self._heads, like.dtype).to(like.device, non_blocking=True)


def load(folder: Path, target: ModelRunner) -> BlockHead:
    """Load the head of a folder; see `specstream.model.heads.recognise.load_head`."""
    shape = BlockShape.of(read_head_config(folder))
    tensors = Tensors.read(folder).renamed(lambda name: name.removeprefix("model."))
    return BlockHead(shape, tensors, target)


def _check(shape: BlockShape, target: ModelRunner) -> None:
    target.check_states(shape.depths)
    weights = target.decoder.weights
    layers, vocabulary, hidden = len(weights.layers), weights.vocab_size, weights.hidden
    check_made_for(
        "the block head",
        ("hidden states of size", shape.hidden, hidden),
        ("a vocabulary of", shape.vocab_size, vocabulary),
        ("states of so many layers:", shape.target_layers or layers, layers),
    )
    if layers in shape.depths:
        raise ModelUnsupported(
            f"the block head reads the target's last layer ({layers - 1}), which can't be read"
        )
    if not 0 <= shape.mask_token_id < vocabulary:
        raise ModelUnsupported(
            f"the block head's mask token {shape.mask_token_id} is none of the target's {vocabulary}"
        )
