"""An EAGLE-3 head in service (arXiv 2503.01840): one decoder layer over the target's hidden states.

It reads a feature, fused from three of the target's layers, and the embedding of the token after it, and
predicts the token after that; for deeper drafts its own output takes the feature's place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specstream.errors import ModelBroken, ModelUnsupported
from specstream.model.attention.base import Batch
from specstream.model.attention.contiguous import ContiguousAttention
from specstream.model.decoder import rotations
from specstream.model.heads.eagle_format import EagleShape, read_shape
from specstream.model.heads.recognise import read_head_config
from specstream.model.heads.tensors import Tensors
from specstream.model.kv.base import RowCache
from specstream.model.layers import layer_of
from specstream.model.norms import Norm, rms_norm
from specstream.model.products import Product, can_pack, product
from specstream.model.runner import ModelRunner
from specstream.model.tree import Tree
from specstream.model.weights import DecoderWeights, LayerWeights, RotaryTable

__all__ = ["EagleHead", "load"]


class EagleHead:
    """See the module. Keys and values are contiguous on every device: they are one layer's.

    Args:
        shape: Sizes and variants.
        tensors: Of its folder.
        target: What it drafts for; lends its embedding, and its output head where it has none.

    Raises:
        ModelBroken: a tensor is missing or has another shape.
    """

    kind, title = "eagle", "the EAGLE head"

    def __init__(self, shape: EagleShape, tensors: Tensors, target: ModelRunner) -> None:
        self.shape, self.device, self.dtype = shape, target.device, target.dtype
        self._target = target
        self.depths, self.width = shape.depths, shape.hidden
        self.parameters = self.nbytes = 0
        s, taps = shape, len(shape.depths)
        self._packed = can_pack(self.dtype, self.device)
        norms = partial(rms_norm, eps=s.eps)
        self._fc = self._product(self._take(tensors, "fc.weight", s.hidden, taps * s.target_hidden))
        self._tap_norms: list[Norm] = []
        if s.fc_norm:
            names = [f"fc_norm.{tap}.weight" for tap in range(taps)]
            self._tap_norms = [norms(self._take(tensors, n, s.target_hidden)) for n in names]
        self._fc_norm: Norm | None = None
        if s.norm_before_fc:
            width = taps * s.target_hidden
            self._fc_norm = norms(self._take(tensors, "input_norm.weight", width))
        self._embedding_norm = norms(
            self._layer_tensor(tensors, "input_layernorm.weight", s.hidden)
        )
        self._norm = norms(self._take(tensors, "norm.weight", s.hidden))
        self.ids = self._vocabulary(tensors)
        self._embedding = self._embeddings(tensors, target)
        self._output = self._product(self._head(tensors, target))
        sizes = self._sizes(self._layer(tensors))
        self._layer_of = layer_of(sizes, sizes.layers[0], norms, self._product)
        self._attention = ContiguousAttention(sizes)
        self._rotary = RotaryTable.by(_rotary(s), self._embedding[:1], s.head_dim)

    def adopt(self, weights: Mapping[str, Tensor]) -> None:
        """Take other weights of the same names and shapes; between two passes.

        Rows of caches stay as they are: those of earlier weights are read as if they were of these.
        """
        values = {name: value.detach().cpu() for name, value in weights.items()}
        if self.ids is not None:
            values["d2t"] = self.ids.cpu() - torch.arange(len(self.ids))
        made = EagleHead(self.shape, Tensors("the head that learns", values), self._target)
        vars(self).update(vars(made))

    def new_cache(self) -> RowCache:
        """An empty cache of one sequence; row t is made of token t's feature and of token t + 1."""
        return self._attention.new_cache()

    def fuse(self, states: Tensor) -> Tensor:
        """The target's hidden states ``[n, depths, hidden]`` to features ``[n, hidden]``."""
        if self._tap_norms:
            parts = zip(self._tap_norms, states.unbind(1), strict=True)
            states = torch.stack([norm(one) for norm, one in parts], 1)
        joint = states.flatten(1)
        if self._fc_norm is not None:
            joint = self._fc_norm(joint)
        return self._fc(joint)

    def __call__(
        self,
        tokens: Tensor,
        features: Tensor,
        caches: Sequence[RowCache],
        counts: Sequence[int],
        keeps: Sequence[int],
        trees: Sequence[Tree | None] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """See `FeatureHead`."""
        if trees is not None and not any(trees):
            trees = None
        batch = Batch(caches, counts, keeps, trees)
        plan = self._attention.plan(batch)
        cos, sin = rotations(self._rotary, batch, self.device)
        normed = self._layer_of.norm(features)
        read = self._embedding_norm(F.embedding(tokens, self._embedding).to(self.dtype))
        x = normed.clone() if self.shape.norm_before_residual else features.clone()
        kept = plan.narrow() if sum(keeps) < tokens.shape[0] else None
        x = self._layer_of(x, cos, sin, plan, 0, kept, torch.cat([read, normed], -1))
        for cache, count in zip(caches, counts, strict=True):
            cache.append_to(cache.length + count)
        final = self._norm(x)
        return self._output(final), final if self.shape.norm_output else x

    def _take(self, tensors: Tensors, name: str | Sequence[str], *shape: int) -> Tensor:
        """A trained tensor, in the target's dtype and on its device."""
        found = tensors.take(name, shape)
        if not found.is_floating_point():
            raise ModelBroken(f"{tensors.folder}: {name} holds {found.dtype}, no floats")
        found = found.to(self.device, self.dtype)
        self.parameters += found.numel()
        self.nbytes += found.nbytes
        return found

    def _layer_tensor(self, tensors: Tensors, name: str, *shape: int) -> Tensor:
        return self._take(tensors, [f"midlayer.{name}", f"layers.0.{name}"], *shape)

    def _product(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        return product(weight, bias, packed=self._packed)

    def _layer(self, tensors: Tensors) -> LayerWeights:
        s, take = self.shape, partial(self._layer_tensor, tensors)
        rows = {
            "q": s.heads * s.head_dim,
            "k": s.kv_heads * s.head_dim,
            "v": s.kv_heads * s.head_dim,
        }
        three = [
            take(f"self_attn.{n}_proj.weight", count, 2 * s.hidden) for n, count in rows.items()
        ]
        biases = [take(f"self_attn.{n}_proj.bias", count) for n, count in rows.items() if s.bias]
        gates = [take(f"mlp.{n}_proj.weight", s.intermediate, s.hidden) for n in ("gate", "up")]
        return LayerWeights(
            norm=take("hidden_norm.weight", s.hidden),
            qkv=torch.cat(three),
            qkv_bias=torch.cat(biases) if biases else None,
            query_norm=None,
            key_norm=None,
            out=take("self_attn.o_proj.weight", s.hidden, rows["q"]),
            out_bias=None,
            mlp_norm=take("post_attention_layernorm.weight", s.hidden),
            gate_up=torch.cat(gates),
            down=take("mlp.down_proj.weight", s.hidden, s.intermediate),
        )

    def _sizes(self, layer: LayerWeights) -> DecoderWeights:
        s = self.shape
        return DecoderWeights(
            heads=s.heads,
            kv_heads=s.kv_heads,
            head_dim=s.head_dim,
            hidden=s.hidden,
            intermediate=s.intermediate,
            eps=s.eps,
            activation=F.silu if s.activation == "silu" else ACT2FN[s.activation],
            activation_name=s.activation,
            embedding=layer.norm.unsqueeze(0),  # tells dtype and device, is never looked up
            norm=layer.norm,
            head=layer.norm.unsqueeze(0),
            layers=(layer,),
            nbytes=self.nbytes,
        )

    def _vocabulary(self, tensors: Tensors) -> Tensor | None:
        """``[draft vocabulary]`` int64: the target's ids; None: they are the same."""
        s = self.shape
        if "t2d" in tensors:
            tensors.take("t2d", (s.vocab_size,))
        if "d2t" not in tensors:
            if s.draft_vocab_size != s.vocab_size:
                raise ModelBroken(f"{tensors.folder}: the tensor d2t is missing")
            return None
        ids = tensors.take("d2t", (s.draft_vocab_size,)).to(torch.int64)
        ids = ids + torch.arange(s.draft_vocab_size)
        if int(ids.min()) < 0 or int(ids.max()) >= s.vocab_size:
            raise ModelBroken(f"{tensors.folder}: d2t leads outside of the {s.vocab_size} tokens")
        if torch.equal(ids, torch.arange(s.vocab_size)):
            return None
        return ids.to(self.device)

    def _embeddings(self, tensors: Tensors, target: ModelRunner) -> Tensor:
        """Its own embedding, or the target's where that is all the same."""
        lent = cast("Tensor", target.model.get_input_embeddings().weight).data
        if "embed_tokens.weight" not in tensors:
            return lent
        found = tensors.take("embed_tokens.weight", (None, self.shape.hidden))
        if found.shape[0] < lent.shape[0]:
            raise ModelBroken(f"{tensors.folder}: embed_tokens.weight has too few rows")
        own = found.to(self.device, self.dtype)
        if own.shape == lent.shape and torch.equal(own, lent):
            return lent
        self.nbytes += own.nbytes
        self.parameters += own.numel()
        return own

    def _head(self, tensors: Tensors, target: ModelRunner) -> Tensor:
        """Its own output head, or those rows of the target's that it can draft."""
        s = self.shape
        if "lm_head.weight" in tensors:
            return self._take(tensors, "lm_head.weight", s.draft_vocab_size, s.hidden)
        lent: Tensor = target.model.get_output_embeddings().weight.data  # type: ignore[no-untyped-call]
        rows = lent if self.ids is None else lent[self.ids]
        self.nbytes += 0 if self.ids is None else rows.nbytes
        return rows


def _rotary(shape: EagleShape) -> LlamaRotaryEmbedding:
    config = LlamaConfig(
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_positions,
        rope_parameters=dict(shape.rope),
    )
    return LlamaRotaryEmbedding(config)


def load(folder: str | Path, target: ModelRunner) -> EagleHead:
    """The head of a folder, for a target; see `specstream.model.heads.eagle_format` for the layouts.

    Raises:
        ModelBroken: its files are damaged, or tensors are missing or of the wrong shape.
        ModelUnsupported: made for another target, a variant that is not computed here, or a target that
            gives no hidden states.
    """
    model = target.model.config.get_text_config()
    hidden, layers = int(model.hidden_size), int(model.num_hidden_layers)
    shape = read_shape(read_head_config(folder), hidden=hidden, layers=layers)
    _fits(shape, folder, hidden=hidden, vocab_size=int(model.vocab_size), layers=layers)
    target.check_states(shape.depths)
    tensors = Tensors.read(folder)
    head = EagleHead(shape, tensors, target)
    if tensors.left:
        raise ModelBroken(f"{folder}: these tensors belong to no known head: {tensors.left}")
    return head


def _fits(
    shape: EagleShape, folder: str | Path, *, hidden: int, vocab_size: int, layers: int
) -> None:
    """Whether the head was made for a target of these sizes; no size of a head can prove it."""
    for name, own, theirs in (
        ("hidden states of size", shape.target_hidden, hidden),
        ("a vocabulary of", shape.vocab_size, vocab_size),
    ):
        if own != theirs:
            raise ModelUnsupported(
                f"the head in {folder} was made for another target: it reads {name} {own}, and this "
                f"target has {theirs}"
            )
    if shape.hidden != hidden:
        raise ModelUnsupported(f"the head in {folder} is {shape.hidden} wide, its target {hidden}")
    if max(shape.depths) > layers or shape.draft_vocab_size > vocab_size:
        raise ModelUnsupported(
            f"the head in {folder} was made for another target: it reads states after "
            f"{max(shape.depths)} layers, and this target has {layers}"
        )
