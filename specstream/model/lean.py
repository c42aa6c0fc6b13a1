"""A lean forward pass for the Llama family: the same function of the same weights, less Python.

A small model, or any model on a fast device, spends more time between its matrix products than in
them: module calls, mask building, cache bookkeeping. Here the products that read one input are one
product, a pass is flat (the tokens of several sequences behind each other, no padding), and what
doesn't change is computed once. The model's own modules keep working: their weights become views.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from specstream.model.attention import SHORT, Alone, Heads, InTurn, Masks, Reader
from specstream.model.lanes import Lanes
from specstream.model.norms import Norm, rms_norm
from specstream.model.products import Product, can_pack, product
from specstream.model.slab import SlabCache
from specstream.model.together import Together
from specstream.model.transfer import to_device
from specstream.model.tree import Tree, positions_of
from specstream.model.weights import DecoderWeights, LayerWeights, RotaryTable

__all__ = ["LeanDecoder"]

_log = logging.getLogger("specstream.model")

_PACKED_BYTES = 2 * 2**30  # a larger model's matrices are not kept twice


@dataclass(frozen=True, slots=True)
class _Layer:
    """One decoder layer's weights, products of one input joined."""

    norm: Norm
    qkv: Product
    query_norm: Norm | None
    key_norm: Norm | None
    out: Product
    mlp_norm: Norm
    gate_up: Product
    down: Product


class LeanDecoder:
    """Runs a Llama-family model over flat tokens; see `of`."""

    def __init__(self, weights: DecoderWeights, rotary: RotaryTable) -> None:
        self.weights, self.rotary = weights, rotary
        self._heads = Heads(weights.heads, weights.kv_heads, weights.head_dim)
        self._masks = Masks(self._heads.group, weights.dtype, weights.device)
        self._lanes = Lanes(weights)
        self.packed = packed = _packs(weights)
        self._head = product(weights.head, packed=packed)
        self._norm = rms_norm(weights.norm, weights.eps)
        self._layers = tuple(_layer(layer, weights.eps, packed) for layer in weights.layers)

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
        trees: Sequence[Tree | None] | None = None,
        taps: Mapping[int, list[Tensor]] | None = None,
    ) -> Tensor:
        """Append tokens to each sequence; final hidden states, ``[N, hidden]`` or those kept of them.

        The last layer is computed for the states that are kept; of all others it needs keys and values
        only.

        Args:
            tokens: ``[N]`` int64, the sequences behind each other.
            caches: One a sequence; each grows by its count.
            counts: How many of the tokens belong to each sequence, in order; each at least 1.
            keeps: Of how many of its last tokens the states are wanted. Default: of all.
            trees: For each sequence the tree that its last tokens are, or None for a chain.
            taps: For some depths d a list, to which ``[N, hidden]`` is added: the states of all tokens
                after d layers, before any norm.
        """
        taps = taps or {}
        trees = trees if trees is not None and any(trees) else None
        readers = self._readers(caches, counts, trees)
        sizes = [reader.rows for reader in readers]
        cos, sin = self._rope(caches, counts, trees)
        total = tokens.shape[0]
        # Fewer rows in the last layer, unless somebody wants its states of all tokens.
        fewer = keeps is not None and sum(keeps) < total and len(self._layers) not in taps
        last = len(self._layers) - 1 if fewer else None
        w = self.weights
        x = F.embedding(tokens, w.embedding)
        for index, layer in enumerate(self._layers):
            if index in taps:
                taps[index].append(x.clone())
            joint = self._turned(layer, layer.qkv(layer.norm(x)), cos, sin).split_with_sizes(sizes)
            if index == last and keeps is not None:
                _ask(readers, keeps)
                rows = x.split_with_sizes(sizes)
                x = _joined([part[r.kept] for r, part in zip(readers, rows, strict=True)])
            read = [r.attend(index, part) for r, part in zip(readers, joint, strict=True)]
            x += layer.out(_joined(read))
            gate, up = layer.gate_up(layer.mlp_norm(x)).chunk(2, -1)
            x += layer.down(w.activation(gate).mul_(up))
        for cache, count in zip(caches, counts, strict=True):
            cache.extend(count)
        if len(self._layers) in taps:
            taps[len(self._layers)].append(x)
            x = _kept(x, counts, keeps)
        return self._norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """``[n, V]`` of hidden states ``[n, hidden]``."""
        return self._head(hidden)

    def _readers(
        self,
        caches: Sequence[SlabCache],
        counts: Sequence[int],
        trees: Sequence[Tree | None] | None,
    ) -> list[Reader]:
        """Who reads what: some sequences together, short ones in turn, long ones and trees alone."""
        if len(caches) == 1 or trees is not None:
            shapes = trees or [None] * len(caches)
            return list(map(partial(Alone, self._heads, self._masks), caches, counts, shapes))
        readers: list[Reader] = []
        together = Together.of(self._heads, self._masks, self._lanes, caches, counts)
        if together is not None:
            readers.append(together)
            caches, counts = caches[together.count :], counts[together.count :]
        short = sum(1 for _ in itertools.takewhile(lambda count: count <= SHORT, counts))
        if short > 1:
            readers.append(InTurn(self._heads, self._masks, caches[:short], counts[:short]))
            caches, counts = caches[short:], counts[short:]
        readers += map(partial(Alone, self._heads, self._masks), caches, counts)
        return readers

    def _turned(self, layer: _Layer, joint: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Queries and keys rotated in place: ``[N, heads + 2 * kv_heads, head_dim]``."""
        heads, keys, dim = self._heads.queries, self._heads.keys, self._heads.dim
        joint = joint.view(-1, heads + 2 * keys, dim)
        turned = joint[:, : heads + keys]
        if layer.query_norm is not None and layer.key_norm is not None:
            turned[:, :heads] = layer.query_norm(turned[:, :heads])
            turned[:, heads:] = layer.key_norm(turned[:, heads:])
        swapped = turned.roll(dim // 2, -1)
        turned.mul_(cos).addcmul_(swapped, sin)
        return joint

    def _rope(
        self,
        caches: Sequence[SlabCache],
        counts: Sequence[int],
        trees: Sequence[Tree | None] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines of every token's position, ``[N, 1, head_dim]`` each."""
        if trees is not None:
            return self._rope_of_trees(caches, counts, trees)
        spans = [
            slice(cache.length, cache.length + count)
            for cache, count in zip(caches, counts, strict=True)
        ]
        cos, sin = self.rotary.upto(max(span.stop for span in spans))
        return (
            _joined([cos[span] for span in spans]).unsqueeze(1),
            _joined([sin[span] for span in spans]).unsqueeze(1),
        )

    def _rope_of_trees(
        self,
        caches: Sequence[SlabCache],
        counts: Sequence[int],
        trees: Sequence[Tree | None],
    ) -> tuple[Tensor, Tensor]:
        positions = list[int]()
        for cache, count, tree in zip(caches, counts, trees, strict=True):
            positions += positions_of(cache.length, count, tree)
        cos, sin = self.rotary.upto(max(positions) + 1)
        rows = to_device(positions, self.weights.device)
        return cos.index_select(0, rows).unsqueeze(1), sin.index_select(0, rows).unsqueeze(1)


def _kept(x: Tensor, counts: Sequence[int], keeps: Sequence[int] | None) -> Tensor:
    """The rows of ``x [N, hidden]`` that are wanted of each sequence: its last."""
    if keeps is None:
        return x
    parts = x.split_with_sizes(list(counts))
    return _joined([part[-keep:] for part, keep in zip(parts, keeps, strict=True)])


def _ask(readers: Sequence[Reader], keeps: Sequence[int]) -> None:
    """Tell each whose last rows are still wanted."""
    start = 0
    for reader in readers:
        reader.ask(keeps[start : start + reader.count])
        start += reader.count


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _packs(weights: DecoderWeights) -> bool:
    """Whether the matrices are kept a second time, in the layout of this CPU's kernels."""
    return weights.nbytes <= _PACKED_BYTES and can_pack(weights.dtype, weights.device)


def _layer(weights: LayerWeights, eps: float, packed: bool) -> _Layer:
    query, key = weights.query_norm, weights.key_norm
    return _Layer(
        norm=rms_norm(weights.norm, eps),
        qkv=product(weights.qkv, weights.qkv_bias, packed=packed),
        query_norm=None if query is None else rms_norm(query, eps),
        key_norm=None if key is None else rms_norm(key, eps),
        out=product(weights.out, weights.out_bias, packed=packed),
        mlp_norm=rms_norm(weights.mlp_norm, eps),
        gate_up=product(weights.gate_up, packed=packed),
        down=product(weights.down, packed=packed),
    )


@torch.inference_mode()
def _agrees(lean: LeanDecoder, model: PreTrainedModel) -> bool:
    tokens = torch.arange(8, device=lean.weights.device) % lean.weights.vocab_size
    cache = lean.new_cache()
    ours = torch.cat([lean(tokens[:5], [cache], [5]), lean(tokens[5:], [cache], [3])])
    wanted = model(input_ids=tokens.unsqueeze(0), use_cache=False).logits[0].float()
    if bool(wanted.isnan().any()):
        return False  # damaged weights: told by whoever tries the model itself
    off = (lean.logits(ours).float() - wanted).abs().amax()
    # 64 units in the last place of the largest logit: rounding in another order, never another sum.
    allowed = 64 * torch.finfo(model.dtype).eps * wanted.abs().amax().clamp_min(1.0)
    if bool(off <= allowed):
        return True
    _log.warning(
        "the lean pass of %s is off by %.3g; its own is used", type(model).__name__, float(off)
    )
    return False
