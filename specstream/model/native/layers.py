"""Decoder layers in native code: a pass, a head's level, or several steps of a draft, in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from specstream.model.attention.base import Batch, kept_rows
from specstream.model.forward import Taps
from specstream.model.kv import ContiguousCache, RowCache
from specstream.model.layers import Layer
from specstream.model.native import structs
from specstream.model.native.library import Library
from specstream.model.native.matrix import COLUMNS, NativeMatrix
from specstream.model.tokens.spelling import NEVER, StopRule
from specstream.model.tree import Tree
from specstream.model.weights import DecoderWeights, LayerWeights, RotaryTable

__all__ = ["MOST_BYTES", "NativeChain", "NativeLayers", "NativeLevel"]

_ACTIVATIONS = {"silu": 0, "gelu_pytorch_tanh": 1}
_KINDS = {torch.float32: structs.FLOAT32, torch.bfloat16: structs.BFLOAT16}


class NativeLayers:
    """All decoder layers of a model or head; made by `of`.

    Args:
        library: The native library.
        weights: The weights of the model or head.
        layers: Its layers, whose products are native matrices; these are shared, not copied.
    """

    def __init__(self, library: Library, weights: DecoderWeights, layers: Sequence[Layer]) -> None:
        w = weights
        self._library, self._depth = library, len(w.layers)
        each = [_layer(*both) for both in zip(w.layers, layers, strict=True)]
        self._layers = structs.array(structs.LayerStruct, each)
        self._sizes = structs.Sizes(
            w.hidden,
            w.heads,
            w.kv_heads,
            w.head_dim,
            w.intermediate,
            w.eps,
            _ACTIVATIONS[w.activation],
            _KINDS[w.dtype],
        )
        self._scratch_row = 2 * (w.heads + w.kv_heads) * w.head_dim + w.intermediate

    @classmethod
    def of(
        cls, library: Library | None, weights: DecoderWeights, layers: Sequence[Layer]
    ) -> NativeLayers | None:
        """Make the layers; None without native code, or if it can't compute them.

        It computes layers on a CPU of known dtypes and activations whose sizes are multiples of
        `COLUMNS`; with ``library`` the products of such ``layers`` have to be native matrices.
        """
        w = weights
        wide = (w.hidden, w.intermediate, w.heads * w.head_dim)
        fits = not any(size % COLUMNS for size in wide)
        known = w.dtype in _KINDS and w.activation in _ACTIVATIONS
        if library is None or w.device.type != "cpu" or not (fits and known):
            return None
        return cls(library, weights, layers)

    def run(self, x: Tensor, rotary: RotaryTable, batch: Batch, entry: Tensor | None = None) -> None:
        """Run all layers over the rows of a batch, in place.

        The rows are written to the caches but not declared valid.

        Args:
            x: ``[n, hidden]`` float32, contiguous; overwritten by the result.
            rotary: The rotary table.
            batch: The pass; its caches are contiguous.
            entry: ``[n, wide]``, read by the first layer instead of its norm of x.
        """
        self.run_on(self.prepared(x, rotary, batch, entry), 0, self._depth)

    def run_on(self, ready: structs.PassStruct, first: int, end: int) -> None:
        """Run layers ``first`` to ``end`` of a prepared pass, for a pass that is run in parts."""
        if first == end:
            return
        ready.first = first
        start = ctypes.cast(ctypes.byref(self._layers[first]), ctypes.POINTER(structs.LayerStruct))
        given, threads = ctypes.byref(ready), torch.get_num_threads()
        self._library.run_layers(ctypes.byref(self._sizes), start, end - first, given, threads)
        ready.entry = None  # only the pass's first layer reads it

    def run_tapped(
        self, ready: structs.PassStruct, x: Tensor, first: int, end: int, taps: Taps, dtype: torch.dtype
    ) -> None:
        """As `run_on`, and give ``taps`` the states ``[n, hidden]`` at its depths, in ``dtype``."""
        wanted = [depth for depth in sorted(taps.depths) if first <= depth <= end]
        for until in taps.pauses(first, end):
            inside = [depth for depth in wanted if depth < until]
            copies, places = x.new_empty(len(inside), *x.shape), (ctypes.c_void_p * self._depth)()
            each = list(copies)
            for depth, one in zip(inside, each, strict=True):
                places[depth] = one.data_ptr()
            ready.taps = ctypes.addressof(places) if each else None
            self.run_on(ready, first, until)
            for depth, one in zip(inside, each, strict=True):
                taps.take(depth, one.to(dtype))
            if until in wanted:
                taps.take(until, x.to(dtype, copy=True))
            first, wanted = until, [depth for depth in wanted if depth > until]

    def run_level(self, ready: structs.PassStruct, level: structs.LevelStruct) -> None:
        """Run one level of an EAGLE head: the first layer and the steps around it; see ``level.h``."""
        sizes, given, around = map(ctypes.byref, (self._sizes, ready, level))
        self._library.run_level(sizes, self._layers, given, around, torch.get_num_threads())

    def run_chain(self, ready: structs.PassStruct, chain: structs.ChainStruct) -> None:
        """Run a prepared pass over one sequence, then greedy steps; see ``chain.h``."""
        sizes, given, steps = map(ctypes.byref, (self._sizes, ready, chain))
        threads = torch.get_num_threads()
        self._library.run_chain(sizes, self._layers, self._depth, given, steps, threads)

    def prepared(
        self, x: Tensor, rotary: RotaryTable, batch: Batch, entry: Tensor | None = None, upto: int = 0
    ) -> structs.PassStruct:
        """Prepare a pass; for arguments see `run`. Later steps may reach positions below ``upto``."""
        count = x.shape[0]
        wide = None if entry is None else entry.float().contiguous()
        at = batch.positions
        cos, sin = rotary.wide(max(max(at) + 1, upto))
        scratch = torch.empty(count * self._scratch_row, dtype=torch.float32)
        trees = batch.trees or [None] * len(batch.caches)
        each = [
            _sequence(cast(ContiguousCache, cache), count, tree)
            for cache, count, tree in zip(batch.caches, batch.counts, trees, strict=True)
        ]
        rows, sequences = structs.array(ctypes.c_int64, at), structs.array(structs.Sequence, each)
        return structs.PassStruct(x, wide, cos, sin, rows, sequences, scratch, count, len(each))


def _layer(weights: LayerWeights, layer: Layer) -> structs.LayerStruct:
    norms = (weights.norm, weights.query_norm, weights.key_norm, weights.mlp_norm)
    products = (layer.qkv, layer.out, layer.gate_up, layer.down)
    return structs.LayerStruct(
        *(None if norm is None else norm.float().contiguous() for norm in norms),
        *(cast(NativeMatrix, product).struct for product in products),
    )


def _sequence(cache: ContiguousCache, count: int, tree: Tree | None) -> structs.Sequence:
    before = cache.length
    end = before + count
    rows = cache.storage(end)
    if tree is None:
        return structs.Sequence(rows, rows.shape[3], before, count, before, None)
    visible = end - max(count, len(tree.parents))
    seen = ctypes.create_string_buffer(tree.seen_bytes(before, count))
    return structs.Sequence(rows, rows.shape[3], before, count, visible, seen)


class NativeLevel:
    """Computes levels of an EAGLE head.

    Args:
        layers: The head's one layer.
        output: Its output head.
        rotary: The layer's rotary table.
        embedding: ``[V, hidden]``, of the dtype of the layer.
        norms: The norms' weights, ``[hidden]`` each: of a token's embedding, of the feature, and before
            the output head.
        residual_normed: Whether the layer adds its results to the normed feature, not to the feature.
        output_normed: Whether the next level reads the normed state as its feature.
    """

    def __init__(
        self,
        layers: NativeLayers,
        output: NativeMatrix,
        rotary: RotaryTable,
        embedding: Tensor,
        norms: tuple[Tensor, Tensor, Tensor],
        *,
        residual_normed: bool,
        output_normed: bool,
    ) -> None:
        self._layers, self._output, self._rotary = layers, output, rotary
        self._embedding = embedding.contiguous()
        self._norms = [norm.float().contiguous() for norm in norms]
        self._flags = residual_normed, output_normed

    def __call__(
        self, tokens: Tensor, features: Tensor, batch: Batch, most: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Append the rows of a batch; return the results of the kept rows.

        The rows are written to the caches but not declared valid.

        Args:
            tokens: ``[n]`` int64, less than the embedding's number of rows.
            features: ``[n, hidden]``.
            batch: The pass; its caches are contiguous.
            most: How many of the likeliest tokens to return, at most as many as can be drafted.

        Returns:
            Logits ``[kept, output.rows]``, features for the next level ``[kept, hidden]``, log
            probabilities of the likeliest tokens ``[kept, most]``, likeliest first, all float32; and
            these tokens ``[kept, most]`` int64.
        """
        count, hidden = features.shape
        kept = kept_rows(batch.counts, batch.keeps)
        made = partial(torch.empty, dtype=torch.float32)
        x, entry = made(count, hidden), made(count, 2 * hidden)
        ready = self._layers.prepared(x, self._rotary, batch, entry=entry)
        logits = made(len(kept), self._output.shape[0])
        finals, states = made(2, len(kept), hidden)
        chances = made(len(kept), most)
        choices = torch.empty(len(kept), most, dtype=torch.int64)
        self._layers.run_level(
            ready,
            structs.LevelStruct(
                self._output.struct,
                *self._norms,
                self._embedding,
                tokens.contiguous(),
                features.float().contiguous(),
                structs.array(ctypes.c_int64, kept),
                entry,
                finals,
                states,
                logits,
                chances,
                choices,
                len(kept),
                most,
                *self._flags,
            ),
        )
        return logits, states, chances, choices


MOST_BYTES = 32 * 2**20
"""The largest model for which chains pay: a step of it takes no longer than a Python call.

Steps behind the end of a draft are wasted, which is cheap for small models only.
"""


class NativeChain:
    """Takes greedy decoding steps of one sequence, several in one native call.

    Args:
        layers: The model's layers.
        head: The model's output head.
        weights: The model's weights, of which the embedding and the final norm are used.
        rotary: The model's rotary table.
    """

    def __init__(
        self, layers: NativeLayers, head: NativeMatrix, weights: DecoderWeights, rotary: RotaryTable
    ) -> None:
        self._layers, self._head = layers, head
        self._embedding, self._rotary = weights.embedding.contiguous(), rotary
        self._norm = weights.norm.float().contiguous()
        self._logits = torch.empty(head.shape[0], dtype=torch.float32)

    def __call__(
        self, tokens: Tensor, cache: RowCache, steps: int, choices: int, stop: StopRule = NEVER
    ) -> tuple[Tensor, Tensor]:
        """Append ``tokens [n]``, then decode; return the tokens ``[made]`` and their probabilities.

        The cache grows by n rows and by those of all decoded tokens but the last.

        Args:
            tokens: ``[n]`` int64.
            cache: A contiguous cache.
            steps: The most tokens to decode, at least 1; with `StopRule.prices` at most one more than
                there are prices.
            choices: Only the first ``choices`` ids of the vocabulary can be chosen.
            stop: A rule to end earlier.
        """
        if stop.prices:
            steps = min(steps, len(stop.prices) + 1)
        before, count = cache.length, tokens.shape[0]
        end = before + count + steps - 1
        cache.reserve(end)
        x = F.embedding(tokens, self._embedding).float()
        ready = self._layers.prepared(x, self._rotary, Batch([cache], [count], [1]), upto=end)
        edges, chances, prices = (
            structs.array(ctypes.c_double, one) for one in (stop.edges, stop.chances, stop.prices)
        )
        chosen = torch.empty(steps, dtype=torch.int64)
        confidences = torch.empty(steps, dtype=torch.float32)
        chain = structs.ChainStruct(
            self._head.struct,
            self._norm,
            self._embedding,
            steps,
            min(choices, self._head.shape[0]),
            self._logits,
            chosen,
            confidences,
            structs.array(ctypes.c_int64, stop.ends),
            edges,
            chances,
            prices if stop.prices else None,
            len(stop.ends),
            len(stop.edges),
            stop.survival,
            stop.ceiling,
        )
        self._layers.run_chain(ready, chain)
        made = int(chain.made)
        cache.append_to(before + count + made - 1)
        return chosen[:made], confidences[:made]
