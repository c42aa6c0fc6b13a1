"""Decoder layers of heads: their tensors, sizes and positions, and `FeatureLayer`, which runs one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specstream.errors import ModelUnsupported
from specstream.model.attention.base import AttentionPlan, Batch
from specstream.model.attention.contiguous import ContiguousAttention, Heads
from specstream.model.decoder import Decoder
from specstream.model.heads.base import LayerShape, reading
from specstream.model.kv import ContiguousCache
from specstream.model.layers import Norm, layer_of
from specstream.model.native.layers import NativeLayers
from specstream.model.weights import DecoderWeights, LayerWeights, RotaryTable

__all__ = ["FeatureLayer", "FleetingPlan", "folded_mask", "head_weights", "layer_weights", "rotary_of"]


class FleetingPlan(AttentionPlan):
    """Rows whose keys and values are stored behind each sequence's own, and never declared valid.

    So the next pass overwrites them.

    Args:
        heads: Sizes of attention.
        caches: The sequences' caches.
        ends: How many rows each cache has before the new ones.
        counts: The number of new rows of each sequence.
        masks: Each sequence's `folded_mask`, for all layers.

    Attributes:
        asked: For each sequence, which of its new rows have queries.
    """

    def __init__(
        self,
        heads: Heads,
        caches: Sequence[ContiguousCache],
        ends: Sequence[int],
        counts: Sequence[int],
        masks: Sequence[Tensor] = (),
    ) -> None:
        self._heads, self._masks = heads, masks
        self._ends, self._counts = ends, list(counts)
        spans = zip(caches, ends, counts, strict=True)
        self._layers = [cache.layer_rows(end + count) for cache, end, count in spans]
        self.asked = [range(count) for count in counts]

    def narrow(self) -> slice | Tensor:
        """See `AttentionPlan.narrow`: all new rows are kept."""
        return slice(None)

    def mask(self, layer: int, number: int) -> Tensor | None:
        """The `folded_mask` of a layer for the sequence ``number``; None: its queries see all rows."""
        return self._masks[number]

    def forward(self, layer: int, queries: Tensor, kv: Tensor) -> Tensor:
        """See `AttentionPlan.forward`."""
        heads, mixed = self._heads, list[Tensor]()
        asked = queries.split_with_sizes([len(each) for each in self.asked])
        each = zip(asked, kv.split_with_sizes(self._counts), strict=True)
        for number, (some, new) in enumerate(each):
            end, stop = self._ends[number], self._ends[number] + self._counts[number]
            keys, values = self._layers[number][2 * layer : 2 * layer + 2]
            keys[:, end:stop] = new[:, : heads.keys].transpose(0, 1)
            values[:, end:stop] = new[:, heads.keys :].transpose(0, 1)
            shown = keys[:, :stop].unsqueeze(0), values[:, :stop].unsqueeze(0)
            mixed.append(heads.attend_few(some, *shown, self.mask(layer, number)))
        return torch.cat(mixed)


def folded_mask(seen: Tensor, heads: Heads, dtype: torch.dtype) -> Tensor:
    """The mask for `Heads.attend_few`: 0 where a query sees a row, in ``seen [n, rows]``, else -inf."""
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return mask.masked_fill_(~seen, -torch.inf).repeat_interleave(heads.group, 0)


def layer_weights(
    take: Callable[..., Tensor],
    sizes: LayerShape | DecoderWeights,
    has: Callable[[str], bool],
    *,
    norm: str = "input_layernorm.weight",
    wide: int = 1,
) -> LayerWeights:
    """Take the tensors of a layer by the names of transformers' Llama and Qwen3.

    Args:
        take: Takes a tensor by its name, without the layer's prefix, and its shape.
        sizes: Sizes of the layer.
        has: Whether a tensor of that name exists; asked for biases, query norm and key norm.
        norm: Name of the norm before attention.
        wide: Width of the input of queries, keys and values, in multiples of the hidden size.
    """
    s = sizes
    rows = {"q": s.heads * s.head_dim} | dict.fromkeys("kv", s.kv_heads * s.head_dim)

    def optional(name: str, *shape: int) -> Tensor | None:
        return take(name, *shape) if has(name) else None

    biased = has("self_attn.q_proj.bias")
    biases = [take(f"self_attn.{n}_proj.bias", count) for n, count in rows.items() if biased]
    three = [take(f"self_attn.{n}_proj.weight", count, wide * s.hidden) for n, count in rows.items()]
    gates = [take(f"mlp.{n}_proj.weight", s.intermediate, s.hidden) for n in ("gate", "up")]
    return LayerWeights(
        norm=take(norm, s.hidden),
        qkv=torch.cat(three),
        qkv_bias=torch.cat(biases) if biased else None,
        query_norm=optional("self_attn.q_norm.weight", s.head_dim),
        key_norm=optional("self_attn.k_norm.weight", s.head_dim),
        out=take("self_attn.o_proj.weight", s.hidden, rows["q"]),
        out_bias=optional("self_attn.o_proj.bias", s.hidden),
        mlp_norm=take("post_attention_layernorm.weight", s.hidden),
        gate_up=torch.cat(gates),
        down=take("mlp.down_proj.weight", s.hidden, s.intermediate),
    )


def head_weights(
    sizes: LayerShape, target: DecoderWeights, layers: Sequence[LayerWeights]
) -> DecoderWeights:
    """The target's weights with a head's layers and sizes in place of its own.

    Raises:
        ModelUnsupported: the head's activation is not known.
    """
    if sizes.activation not in ACT2FN:
        raise ModelUnsupported(f"the head's activation {sizes.activation!r} is not known here")
    return replace(
        target,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        hidden=sizes.hidden,
        intermediate=sizes.intermediate,
        eps=sizes.eps,
        activation=sizes.activation,
        layers=tuple(layers),
    )


def rotary_of(sizes: LayerShape, like: Tensor) -> RotaryTable:
    """The rotary table of the head's own ``rope_parameters``, in the dtype and device of ``like``.

    Raises:
        ModelBroken: these parameters make no sense.
    """
    with reading(f"the head with rope_parameters {dict(sizes.rope)}"):
        config = LlamaConfig(
            hidden_size=sizes.hidden,
            num_attention_heads=sizes.heads,
            head_dim=sizes.head_dim,
            max_position_embeddings=sizes.max_positions,
            rope_parameters=dict(sizes.rope),
        )
        rotary = LlamaRotaryEmbedding(config).to(like.device)
    return RotaryTable(rotary, like[:1], sizes.head_dim)


class FeatureLayer:
    """The decoder layer of a `FeatureHead`.

    Keys and values are contiguous on every device, never in a pool, as they belong to one layer only.

    Args:
        weights: The head's weights, with one layer.
        norms: Makes a norm from its weight.
        decoder: The target's decoder; it makes the layer's products.
        rotary: The layer's rotary table.
    """

    def __init__(
        self,
        weights: DecoderWeights,
        norms: Callable[[Tensor], Norm],
        decoder: Decoder,
        rotary: RotaryTable,
    ) -> None:
        (layer,) = weights.layers
        self._layer = layer_of(weights, layer, norms, decoder.products)
        self.native = NativeLayers.of(decoder.native, weights, [self._layer])
        self.norm, self.rotary = norms(layer.norm), rotary
        self._attention = ContiguousAttention(weights)

    def new_cache(self) -> ContiguousCache:
        """An empty cache of one sequence."""
        return self._attention.new_cache()

    def __call__(self, x: Tensor, batch: Batch, entry: Tensor | None = None) -> Tensor:
        """Append rows ``x [N, hidden]``, which are overwritten; return the layer's output of kept rows.

        See `FeatureHead` for ``batch``, `Layer` for ``entry``.
        """
        if self.native is not None:
            wide = x.float().contiguous()
            self.native.run(wide, self.rotary, batch, entry=entry)
            x = batch.kept(wide).to(x.dtype)
        else:
            plan = self._attention.plan(batch)
            kept = plan.narrow() if sum(batch.keeps) < x.shape[0] else None
            cos, sin = self.rotary.rows(plan.positions, batch.end)
            x = self._layer(x, cos, sin, plan, 0, kept, entry)
        batch.append()
        return x
