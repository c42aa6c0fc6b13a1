"""Block-parallel heads (DFlash, arXiv 2602.06036): one pass drafts a whole block of tokens.

A block is the last committed token, its *anchor*, and a mask token for each token to be drafted. The
head's few decoder layers read the whole block at once. The text before it is present as keys and values
that are made from the target's hidden states, one row for each token that the target has read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from specstream.errors import ModelUnsupported
from specstream.model.attention.contiguous import ContiguousAttention, Heads
from specstream.model.heads.base import Context, check_made_for
from specstream.model.heads.block_format import BlockShape
from specstream.model.heads.layer import (
    FleetingPlan,
    folded_mask,
    head_weights,
    layer_weights,
    rotary_of,
)
from specstream.model.heads.recognise import read_head_config
from specstream.model.heads.tensors import Placed, Tensors
from specstream.model.kv.base import ContiguousCache
from specstream.model.layers import Norm, layer_of, rms_norm, rotated
from specstream.model.numerics import to_device
from specstream.model.runner import ModelRunner

__all__ = ["BlockHead", "load"]


class BlockHead:
    """A block head, ready to draft with its target's embedding and output head.

    Args:
        shape: Sizes.
        tensors: Its weights, under the published names.
        target: The model that it drafts for.

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
        self._rotary = rotary_of(shape, sizes.embedding)
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
        cos, sin = self._rotary.at([at for one, n in each for at in range(one.end, one.end + n)])
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

    def block(
        self, contexts: Sequence[Context], anchors: Sequence[int], keeps: Sequence[int]
    ) -> Tensor:
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
        cos, sin = self._rotary.at(places)
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
        rows = [
            start + row for start, asked in zip(starts, self.asked, strict=True) for row in asked
        ]
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
