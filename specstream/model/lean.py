"""A lean forward pass for the Llama family: the same function of the same weights, less Python.

A small model, or any model on a fast device, spends more time between its matrix products than in
them: module calls, mask building, cache bookkeeping. Here the products that read one input are one
product, a pass is flat (the tokens of several sequences behind each other, no padding), and what
doesn't change is computed once. The model's own modules keep working: their weights become views.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from specstream.model.products import Product, can_pack, product
from specstream.model.slab import SlabCache
from specstream.model.weights import DecoderWeights, LayerWeights, RotaryTable

__all__ = ["LeanDecoder"]

_log = logging.getLogger("specstream.model")

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
    """One sequence's share of a flat pass: its rows, its views of the cache, its mask.

    Queries are its rows from ``first`` on; keys and values are written for all.
    """

    start: int
    first: int
    stop: int
    at: int
    fresh: tuple[Tensor, ...]
    shown: tuple[Tensor, ...]
    mask: Tensor | None


class LeanDecoder:
    """Runs a Llama-family model over flat tokens; see `of`."""

    def __init__(self, weights: DecoderWeights, rotary: RotaryTable) -> None:
        self.weights, self.rotary = weights, rotary
        self.heads, self.kv_heads = weights.heads, weights.kv_heads
        self.head_dim = weights.head_dim
        self.packed = packed = _packs(weights)
        self._head = product(weights.head, packed=packed)
        self._layers = tuple(_layer(layer, packed) for layer in weights.layers)
        self._causal: dict[int, Tensor] = {}

    @classmethod
    def of(cls, model: PreTrainedModel) -> LeanDecoder | None:
        """The lean pass of a model that has one; None for any other, which runs as it is.

        What is found is also tried: where the two ways disagree on a few tokens by more than their
        dtype's rounding, the model's own is used, and a warning logged.
        """
        weights = DecoderWeights.of(model)
        if weights is None:
            return None
        lean = cls(weights, RotaryTable(model, weights.head_dim))
        return lean if _agrees(lean, model) else None

    def new_cache(self, fixed_capacity: int | None = None) -> SlabCache:
        """An empty cache for one sequence."""
        w = self.weights
        return SlabCache(len(w.layers), w.kv_heads, w.head_dim, w.dtype, w.device, fixed_capacity)

    def __call__(
        self,
        tokens: Tensor,
        caches: Sequence[SlabCache],
        counts: Sequence[int],
        keeps: Sequence[int] | None = None,
    ) -> Tensor:
        """Append tokens to each sequence; final hidden states, ``[N, hidden]`` or those kept of them.

        The last layer is computed for the states that are kept; of all others it needs keys and values
        only.

        Args:
            tokens: ``[N]`` int64, the sequences behind each other.
            caches: One a sequence; each grows by its count.
            counts: How many of the tokens belong to each sequence, in order; each at least 1.
            keeps: Of how many of its last tokens the states are wanted. Default: of all.
        """
        parts = self._parts(caches, counts)
        cos, sin = self._rope(parts)
        total = tokens.shape[0]
        last = len(self._layers) - 1 if keeps is not None and sum(keeps) < total else None
        w, rms = self.weights, torch.rms_norm
        eps, hidden, activation = w.eps, (w.hidden,), w.activation
        x = F.embedding(tokens, w.embedding)
        for index, layer in enumerate(self._layers):
            joint = layer.qkv(rms(x, hidden, layer.norm, eps))
            if index == last and keeps is not None:
                parts = self._askers(parts, caches, keeps)
                x = torch.cat([x[part.first : part.stop] for part in parts])
            mixed = self._attend(index, layer, joint, parts, cos, sin)
            x = x + layer.out(mixed)
            gate_up = layer.gate_up(rms(x, hidden, layer.mlp_norm, eps))
            gate, up = torch.split(gate_up, w.intermediate, -1)
            x = x + layer.down(activation(gate) * up)
        for cache, count in zip(caches, counts, strict=True):
            cache.extend(count)
        return rms(x, hidden, w.norm, eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """``[n, V]`` of hidden states ``[n, hidden]``."""
        return self._head(hidden)

    def _attend(
        self,
        index: int,
        layer: _Layer,
        joint: Tensor,
        parts: Sequence[_Part],
        cos: Tensor,
        sin: Tensor,
    ) -> Tensor:
        """Rotate, write the new rows, read all rows: a row ``[heads * head_dim]`` for each query."""
        heads, kv_heads, dim = self.heads, self.kv_heads, self.head_dim
        joint = joint.view(-1, heads + 2 * kv_heads, dim)
        turned = joint[:, : heads + kv_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            eps = self.weights.eps
            turned[:, :heads] = torch.rms_norm(turned[:, :heads], (dim,), layer.query_norm, eps)
            turned[:, heads:] = torch.rms_norm(turned[:, heads:], (dim,), layer.key_norm, eps)
        half = dim // 2
        swapped = torch.cat((turned[..., half:], turned[..., :half]), -1)
        turned.copy_(turned * cos + swapped.mul_(sin))
        outputs = []
        for part in parts:
            rows = joint if len(parts) == 1 else joint[part.start : part.stop]
            count = rows.shape[0]
            part.fresh[index].copy_(rows[:, heads:].view(count, 2, kv_heads, dim).transpose(0, 1))
            keys, values = part.shown[index].unsqueeze(1).unbind()
            queries = rows[part.first - part.start :, :heads]
            outputs.append(self._read(queries, keys, values, part.mask))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _read(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attention of ``queries [n, heads, head_dim]``: ``[n, heads * head_dim]``."""
        count, heads, dim = queries.shape
        if count > _SHORT:
            mixed = F.scaled_dot_product_attention(
                queries.transpose(0, 1).unsqueeze(0),
                keys,
                values,
                attn_mask=mask,
                is_causal=mask is None,
                enable_gqa=heads != self.kv_heads,
            )
            return mixed[0].transpose(0, 1).reshape(count, heads * dim)
        # Query heads that share a key head stand in one matrix: no key is repeated for them.
        group = heads // self.kv_heads
        folded = queries.view(count, self.kv_heads, group, dim).permute(1, 2, 0, 3)
        mixed = F.scaled_dot_product_attention(
            folded.reshape(1, self.kv_heads, group * count, dim), keys, values, attn_mask=mask
        )
        unfolded = mixed.view(self.kv_heads, group, count, dim).permute(2, 0, 1, 3)
        return unfolded.reshape(count, heads * dim)

    def _parts(self, caches: Sequence[SlabCache], counts: Sequence[int]) -> list[_Part]:
        parts, start = [], 0
        for cache, count in zip(caches, counts, strict=True):
            at = cache.length
            fresh, shown = cache.views(count)
            mask = self._mask(count, at, cache.fixed_capacity)
            parts.append(_Part(start, start, start + count, at, fresh, shown, mask))
            start += count
        return parts

    def _askers(
        self, parts: Sequence[_Part], caches: Sequence[SlabCache], keeps: Sequence[int]
    ) -> list[_Part]:
        """The same parts with only their last rows as queries."""
        made = []
        for part, cache, keep in zip(parts, caches, keeps, strict=True):
            first = part.stop - keep
            mask = self._mask(keep, part.at + first - part.start, cache.fixed_capacity)
            made.append(replace(part, first=first, mask=mask))
        return made

    def _mask(self, count: int, at: int, fixed_capacity: int | None) -> Tensor | None:
        """What is added to the scores: 0 where a query may look, else minus infinity.

        Rows are queries (of each folded head in turn), columns the cache's rows. None where every
        query may look everywhere, or where the kernel's own causal mask says the same.
        """
        folds = self.heads // self.kv_heads if count <= _SHORT else 1
        if fixed_capacity is not None:
            limits = torch.arange(at, at + count, device=self.weights.device).unsqueeze(1)
            seen = torch.arange(fixed_capacity, device=self.weights.device) <= limits
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
        seen = torch.ones(shape, dtype=torch.bool, device=self.weights.device).tril_(before)
        return self._additive(seen)

    def _additive(self, seen: Tensor) -> Tensor:
        zeros = torch.zeros(seen.shape, dtype=self.weights.dtype, device=seen.device)
        return zeros.masked_fill_(~seen, -torch.inf)

    def _rope(self, parts: Sequence[_Part]) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines of every token's position, ``[N, 1, head_dim]`` each."""
        cos, sin = self.rotary.upto(max(part.at + part.stop - part.start for part in parts))
        spans = [slice(part.at, part.at + part.stop - part.start) for part in parts]
        if len(spans) == 1:
            return cos[spans[0]].unsqueeze(1), sin[spans[0]].unsqueeze(1)
        return (
            torch.cat([cos[span] for span in spans]).unsqueeze(1),
            torch.cat([sin[span] for span in spans]).unsqueeze(1),
        )


def _packs(weights: DecoderWeights) -> bool:
    """Whether the matrices are kept a second time, in the layout of this CPU's kernels."""
    return weights.nbytes <= _PACKED_BYTES and can_pack(weights.dtype, weights.device)


def _layer(weights: LayerWeights, packed: bool) -> _Layer:
    return _Layer(
        norm=weights.norm,
        qkv=product(weights.qkv, weights.qkv_bias, packed=packed),
        query_norm=weights.query_norm,
        key_norm=weights.key_norm,
        out=product(weights.out, weights.out_bias, packed=packed),
        mlp_norm=weights.mlp_norm,
        gate_up=product(weights.gate_up, packed=packed),
        down=product(weights.down, packed=packed),
    )


@torch.inference_mode()
def _agrees(lean: LeanDecoder, model: PreTrainedModel) -> bool:
    tokens = torch.arange(8, device=lean.weights.device) % lean.weights.vocab_size
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
