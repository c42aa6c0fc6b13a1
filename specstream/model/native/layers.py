"""Decoder layers in native code: one call for a whole pass, over any number of sequences."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from specstream.model.attention.base import Batch
from specstream.model.forward import Taps
from specstream.model.kv.base import ContiguousCache
from specstream.model.layers import Layer
from specstream.model.native import structs
from specstream.model.native.library import Library
from specstream.model.native.matrix import COLUMNS, NativeMatrix
from specstream.model.tree import Tree
from specstream.model.weights import DecoderWeights, LayerWeights, RotaryTable

__all__ = ["NativeLayers"]

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

    def run(
        self,
        x: Tensor,
        rotary: RotaryTable,
        batch: Batch,
        entry: Tensor | None = None,
    ) -> None:
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
        self,
        ready: structs.PassStruct,
        x: Tensor,
        first: int,
        end: int,
        taps: Taps,
        dtype: torch.dtype,
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
        self,
        x: Tensor,
        rotary: RotaryTable,
        batch: Batch,
        entry: Tensor | None = None,
        upto: int = 0,
    ) -> structs.PassStruct:
        """Prepare a pass; for arguments see `run`. Later steps may reach positions below ``upto``."""
        count = x.shape[0]
        wide = None if entry is None else entry.float().contiguous()
        at = batch.positions
        cos, sin = rotary.wide(max(max(at) + 1, upto))
        scratch = torch.empty(count * self._scratch_row)
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
