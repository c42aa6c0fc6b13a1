"""A lean forward pass for the Llama family: the same function of the same weights, less Python.

A small model, or any model on a fast device, spends more time between its matrix products than in
them: module calls, mask building, cache bookkeeping. Here the products that read one input are one
product, a pass is flat (the tokens of several sequences behind each other, no padding), and what
doesn't change is computed once. The model's own modules keep working: their weights become views.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from specstream.model.products import Product, can_pack, product
from specstream.model.slab import SlabCache

__all__ = ["LeanDecoder"]

_log = logging.getLogger("specstream.model")

_FAMILY = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
_STATIC_ROPE = {"default", "linear", "llama3"}
_PACKED_BYTES = 2 * 2**30  # a larger model's matrices are not kept twice
_SHORT = 64  # tokens of a sequence up to which query heads of one group are folded into one
_STORED = 8192  # context up to which masks are kept: there is one for each width


@dataclass(frozen=True, slots=True)
class _Layer:
    """One decoder layer's weights, products of one input joined."""

    norm: Tensor
    qkv: Product
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: Product
    mlp_norm: Tensor
    gate_up: Product
    down: Product


@dataclass(slots=True)
class _Part:
    """One sequence's share of a flat pass: its rows, its views of the cache, its mask."""

    start: int
    stop: int
    at: int
    fresh: tuple[Tensor, ...]
    shown: tuple[Tensor, ...]
    mask: Tensor | None


class LeanDecoder:
    """Runs a Llama-family model over flat tokens; see `of`."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Join the weights of ``model`` in place (its parameters become views of the joint ones)."""
        inner: Any = model.model
        config = model.config
        self.heads = int(config.num_attention_heads)
        self.kv_heads = int(config.num_key_value_heads)
        self.head_dim = int(inner.layers[0].self_attn.head_dim)
        self.hidden = (int(config.hidden_size),)
        self.intermediate = int(config.intermediate_size)
        self.eps = float(config.rms_norm_eps)
        self.embedding: Tensor = inner.embed_tokens.weight.data
        self.norm: Tensor = inner.norm.weight.data
        head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        packed = _packs(model)
        self.head = product(head.weight.data, packed=packed)
        self.layers = tuple(_join(layer, packed) for layer in inner.layers)
        self.activation: Callable[[Tensor], Tensor] = inner.layers[0].mlp.act_fn
        if config.hidden_act == "silu":
            self.activation = F.silu
        self._rotary = inner.rotary_emb
        self._cos, self._sin = self._rope_table(256)
        self._causal: dict[int, Tensor] = {}

    @classmethod
    def of(cls, model: PreTrainedModel) -> LeanDecoder | None:
        """The lean pass of a model that has one; None for any other, which runs as it is.

        What is found is also tried: where the two ways disagree on a few tokens by more than their
        dtype's rounding, the model's own is used, and a warning logged.
        """
        if not _plain(model):
            return None
        lean = cls(model)
        return lean if _agrees(lean, model) else None

    def new_cache(self, fixed_capacity: int | None = None) -> SlabCache:
        """An empty cache for one sequence."""
        dtype, device = self.embedding.dtype, self.embedding.device
        return SlabCache(
            len(self.layers), self.kv_heads, self.head_dim, dtype, device, fixed_capacity
        )

    def __call__(
        self, tokens: Tensor, caches: Sequence[SlabCache], counts: Sequence[int]
    ) -> Tensor:
        """Append tokens to each sequence; the final hidden states ``[N, hidden]``.

        Args:
            tokens: ``[N]`` int64, the sequences behind each other.
            caches: One a sequence; each grows by its count.
            counts: How many of the tokens belong to each sequence, in order; each at least 1.
        """
        parts = self._parts(caches, counts)
        cos, sin = self._rope(parts)
        rms, eps, hidden = torch.rms_norm, self.eps, self.hidden
        x = F.embedding(tokens, self.embedding)
        for index, layer in enumerate(self.layers):
            joint = layer.qkv(rms(x, hidden, layer.norm, eps))
            mixed = self._attend(index, layer, joint, parts, cos, sin)
            x = x + layer.out(mixed)
            gate_up = layer.gate_up(rms(x, hidden, layer.mlp_norm, eps))
            gate, up = torch.split(gate_up, self.intermediate, -1)
            x = x + layer.down(self.activation(gate) * up)
        for cache, count in zip(caches, counts, strict=True):
            cache.extend(count)
        return rms(x, hidden, self.norm, eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """``[n, V]`` of hidden states ``[n, hidden]``."""
        return self.head(hidden)

    def _attend(
        self,
        index: int,
        layer: _Layer,
        joint: Tensor,
        parts: Sequence[_Part],
        cos: Tensor,
        sin: Tensor,
    ) -> Tensor:
        """Rotate, write the new rows, read all rows: ``[N, heads * head_dim]``."""
        heads, kv_heads, dim = self.heads, self.kv_heads, self.head_dim
        joint = joint.view(-1, heads + 2 * kv_heads, dim)
        turned = joint[:, : heads + kv_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            turned[:, :heads] = torch.rms_norm(
                turned[:, :heads], (dim,), layer.query_norm, self.eps
            )
            turned[:, heads:] = torch.rms_norm(turned[:, heads:], (dim,), layer.key_norm, self.eps)
        half = dim // 2
        swapped = torch.cat((turned[..., half:], turned[..., :half]), -1)
        turned.copy_(turned * cos + swapped.mul_(sin))
        outputs = []
        for part in parts:
            rows = joint if len(parts) == 1 else joint[part.start : part.stop]
            count = rows.shape[0]
            part.fresh[index].copy_(rows[:, heads:].view(count, 2, kv_heads, dim).transpose(0, 1))
            keys, values = part.shown[index].unsqueeze(1).unbind()
            outputs.append(self._read(rows[:, :heads], keys, values, part))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _read(self, queries: Tensor, keys: Tensor, values: Tensor, part: _Part) -> Tensor:
        """Attention of ``queries [n, heads, head_dim]``: ``[n, heads * head_dim]``."""
        count, heads, dim = queries.shape
        if count > _SHORT:
            mixed = F.scaled_dot_product_attention(
                queries.transpose(0, 1).unsqueeze(0),
                keys,
                values,
                attn_mask=part.mask,
                is_causal=part.mask is None,
                enable_gqa=heads != self.kv_heads,
            )
            return mixed[0].transpose(0, 1).reshape(count, heads * dim)
        # Query heads that share a key head stand in one matrix: no key is repeated for them.
        group = heads // self.kv_heads
        folded = queries.view(count, self.kv_heads, group, dim).permute(1, 2, 0, 3)
        mixed = F.scaled_dot_product_attention(
            folded.reshape(1, self.kv_heads, group * count, dim), keys, values, attn_mask=part.mask
        )
        unfolded = mixed.view(self.kv_heads, group, count, dim).permute(2, 0, 1, 3)
        return unfolded.reshape(count, heads * dim)

    def _parts(self, caches: Sequence[SlabCache], counts: Sequence[int]) -> list[_Part]:
        parts, start = [], 0
        for cache, count in zip(caches, counts, strict=True):
            at = cache.length
            fresh, shown = cache.views(count)
            mask = self._mask(count, at, cache.fixed_capacity)
            parts.append(_Part(start, start + count, at, fresh, shown, mask))
            start += count
        return parts

    def _mask(self, count: int, at: int, fixed_capacity: int | None) -> Tensor | None:
        """What is added to the scores: 0 where a query may look, else minus infinity.

        Rows are queries (of each folded head in turn), columns the cache's rows. None where every
        query may look everywhere, or where the kernel's own causal mask says the same.
        """
        folds = self.heads // self.kv_heads if count <= _SHORT else 1
        if fixed_capacity is not None:
            limits = torch.arange(at, at + count, device=self.embedding.device).unsqueeze(1)
            seen = torch.arange(fixed_capacity, device=self.embedding.device) <= limits
            return self._additive(seen).repeat(folds, 1)
        if count == 1 or (count > _SHORT and at == 0):
            return None
        if count > _SHORT:
            return self._triangle(count, at)
        if at > _STORED:
            return self._triangle(count, at).repeat(folds, 1)
        # A stored triangle behind enough zeros serves every position by being cut at another place.
        stored = self._causal.get(count)
        if stored is None or stored.shape[1] < at + count:
            room = max(512, 2 * at)
            stored = self._triangle(count, room).repeat(folds, 1)
            self._causal[count] = stored
        return stored[:, stored.shape[1] - at - count :]

    def _triangle(self, count: int, before: int) -> Tensor:
        shape = (count, before + count)
        seen = torch.ones(shape, dtype=torch.bool, device=self.embedding.device).tril_(before)
        return self._additive(seen)

    def _additive(self, seen: Tensor) -> Tensor:
        zeros = torch.zeros(seen.shape, dtype=self.embedding.dtype, device=seen.device)
        return zeros.masked_fill_(~seen, -torch.inf)

    def _rope(self, parts: Sequence[_Part]) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines of every token's position, ``[N, 1, head_dim]`` each."""
        end = max(part.at + part.stop - part.start for part in parts)
        if end > self._cos.shape[0]:
            self._cos, self._sin = self._rope_table(2 * end)
        spans = [slice(part.at, part.at + part.stop - part.start) for part in parts]
        if len(spans) == 1:
            return self._cos[spans[0]], self._sin[spans[0]]
        return (
            torch.cat([self._cos[span] for span in spans]),
            torch.cat([self._sin[span] for span in spans]),
        )

    def _rope_table(self, length: int) -> tuple[Tensor, Tensor]:
        """The model's own angles; the first half of the sines negated, as the rotation wants it."""
        positions = torch.arange(length, device=self.embedding.device).unsqueeze(0)
        cos, sin = self._rotary(self.embedding[:1], positions)
        half = self.head_dim // 2
        signed = torch.cat((-sin[..., :half], sin[..., half:]), -1)
        return cos[0].unsqueeze(1).contiguous(), signed[0].unsqueeze(1).contiguous()


def _plain(model: PreTrainedModel) -> bool:
    """Whether the model is what `LeanDecoder` computes, and nothing besides."""
    config = model.config
    if type(model).__name__ not in _FAMILY or getattr(config, "mlp_bias", False):
        return False
    if set(getattr(config, "layer_types", None) or ()) - {"full_attention"}:
        return False
    if type(model).__name__ == "MistralForCausalLM" and config.sliding_window is not None:
        return False
    rope = getattr(config, "rope_parameters", None) or {}
    partial = float(rope.get("partial_rotary_factor", 1.0)) != 1.0
    if rope.get("rope_type", "default") not in _STATIC_ROPE or partial:
        return False
    # Quantised or otherwise replaced layers have their own ways.
    inner: Any = model.model
    kinds = {type(m) for layer in inner.layers for m in layer.modules() if hasattr(m, "weight")}
    return all(kind is nn.Linear or kind.__name__.endswith("RMSNorm") for kind in kinds)


def _packs(model: PreTrainedModel) -> bool:
    """Whether the matrices are kept a second time, in the layout of this CPU's kernels."""
    size = sum(weight.nbytes for weight in model.parameters())
    return size <= _PACKED_BYTES and can_pack(model.dtype, model.device)


def _join(layer: Any, packed: bool) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    three = (attention.q_proj, attention.k_proj, attention.v_proj)
    qkv = _joined([linear.weight for linear in three])
    has_bias = attention.q_proj.bias is not None
    qkv_bias = _joined([linear.bias for linear in three]) if has_bias else None
    out, out_bias = attention.o_proj.weight.data, attention.o_proj.bias
    query_norm, key_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    return _Layer(
        norm=layer.input_layernorm.weight.data,
        qkv=product(qkv, qkv_bias, packed=packed),
        query_norm=query_norm.weight.data if query_norm is not None else None,
        key_norm=key_norm.weight.data if key_norm is not None else None,
        out=product(out, None if out_bias is None else out_bias.data, packed=packed),
        mlp_norm=layer.post_attention_layernorm.weight.data,
        gate_up=product(_joined([mlp.gate_proj.weight, mlp.up_proj.weight]), packed=packed),
        down=product(mlp.down_proj.weight.data, packed=packed),
    )


def _joined(parts: Sequence[nn.Parameter]) -> Tensor:
    """One tensor of several parameters, which become views of it: nothing is kept twice."""
    whole = torch.cat([part.data for part in parts])
    for part, view in zip(parts, torch.split(whole, [p.shape[0] for p in parts]), strict=True):
        part.data = view
    return whole


@torch.inference_mode()
def _agrees(lean: LeanDecoder, model: PreTrainedModel) -> bool:
    tokens = torch.arange(8, device=lean.embedding.device) % lean.embedding.shape[0]
    cache = lean.new_cache()
    ours = torch.cat([lean(tokens[:5], [cache], [5]), lean(tokens[5:], [cache], [3])])
    wanted = model(input_ids=tokens.unsqueeze(0), use_cache=False).logits[0].float()
    off = (lean.logits(ours).float() - wanted).abs().amax()
    # 64 units in the last place of the largest logit: rounding in another order, never another sum.
    allowed = 64 * torch.finfo(model.dtype).eps * wanted.abs().amax().clamp_min(1.0)
    if bool(off <= allowed):
        return True
    _log.warning(
        "the lean pass of %s is off by %.3g; its own is used", type(model).__name__, float(off)
    )
    return False
