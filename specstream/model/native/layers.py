"""Decoder layers in native code: one call for a whole pass, over any number of sequences."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor

from specstream.model.attention.base import Batch
from specstream.model.forward import Taps
from specstream.model.kv.contiguous import ContiguousCache
from specstream.model.native import structs
from specstream.model.native.library import Library
from specstream.model.native.matrix import COLUMNS, NativeMatrix
from specstream.model.rotations import positions
from specstream.model.tree import Tree
from specstream.model.weights import DecoderWeights, LayerWeights, RotaryTable

__all__ = ["NativeLayers", "Prepared"]

_ACTIVATIONS = {"silu": 0, "gelu_pytorch_tanh": 1}
_KINDS = {torch.float32: structs.FLOAT32, torch.bfloat16: structs.BFLOAT16}


MatrixOf = Callable[[Tensor, Tensor | None], NativeMatrix]


class Prepared(NamedTuple):
    """The arguments of a native pass.

    Attributes:
        given: The structure that native code reads.
        kept: The tensors and arrays that it points to, which must stay alive until the pass ends.
    """

    given: structs.Pass
    kept: object


class NativeLayers:
    """All decoder layers of a model or head; made by `of`.

    Args:
        library: The native library.
        weights: The weights of the model or head.
        matrix: Makes a native matrix from a weight and its bias, for instance a quantised one.
    """

    def __init__(self, library: Library, weights: DecoderWeights, matrix: MatrixOf) -> None:
        w = weights
        self._library, self._matrix, self.depth = library, matrix, len(w.layers)
        self._kept = list[object]()  # tensors and matrices that ``structs`` points to
        self.structs = (structs.Layer * len(w.layers))(*map(self._layer, w.layers))
        self.sizes = structs.Sizes(
            w.hidden,
            w.heads,
            w.kv_heads,
            w.head_dim,
            w.intermediate,
            w.eps,
            _ACTIVATIONS[w.activation_name],
            _KINDS[w.dtype],
        )
        self.dtype = w.dtype
        self._scratch_row = 2 * (w.heads + w.kv_heads) * w.head_dim + w.intermediate

    @classmethod
    def of(
        cls, library: Library | None, weights: DecoderWeights, matrix: MatrixOf | None = None
    ) -> NativeLayers | None:
        """Make the layers; None without native code, or if it can't compute them.

        It computes layers on a CPU of known dtypes and activations whose sizes are multiples of
        `COLUMNS`. By default matrices are read as they are, without quantising them.
        """
        w = weights
        wide = (w.hidden, w.intermediate, w.heads * w.head_dim)
        fits = not any(size % COLUMNS for size in wide)
        known = w.dtype in _KINDS and w.activation_name in _ACTIVATIONS
        if library is None or w.device.type != "cpu" or not (fits and known):
            return None
        return cls(library, weights, matrix or partial(NativeMatrix, library))

    @staticmethod
    def take(batch: Batch) -> bool:
        """Whether native code can run this batch: no cache has a fixed capacity."""
        return all(cache.fixed_capacity is None for cache in batch.caches)

    def _layer(self, layer: LayerWeights) -> structs.Layer:
        matrices = (
            self._matrix(layer.qkv, layer.qkv_bias),
            self._matrix(layer.out, layer.out_bias),
            self._matrix(layer.gate_up, None),
            self._matrix(layer.down, None),
        )
        self._kept += matrices
        norms = (layer.norm, layer.query_norm, layer.key_norm, layer.mlp_norm)
        return structs.Layer(*map(self._norm, norms), *(one.struct for one in matrices))

    def _norm(self, weight: Tensor | None) -> int | None:
        if weight is None:
            return None
        wide = weight.float().contiguous()
        self._kept.append(wide)
        return wide.data_ptr()

    def run(
        self,
        x: Tensor,
        rotary: RotaryTable,
        batch: Batch,
        first: int = 0,
        end: int | None = None,
        entry: Tensor | None = None,
    ) -> None:
        """Run layers ``first`` to ``end`` over the rows of a batch, in place.

        The rows are written to the caches but not declared valid.

        Args:
            x: ``[n, hidden]`` float32, contiguous; overwritten by the result.
            rotary: The rotary table.
            batch: The pass; its caches are contiguous and of no fixed capacity.
            first: The first layer.
            end: The layer after the last one; None: all layers.
            entry: ``[n, wide]``, read by the first layer instead of its norm of x.
        """
        end = self.depth if end is None else end
        self.run_on(self.prepared(x, rotary, batch, first, entry), first, end)

    def run_on(self, ready: Prepared, first: int, end: int) -> None:
        """Run layers ``first`` to ``end`` of a prepared pass, for a pass that is run in parts."""
        if first == end:
            return
        ready.given.first = first
        start = ctypes.cast(ctypes.byref(self.structs[first]), ctypes.POINTER(structs.Layer))
        given, threads = ctypes.byref(ready.given), torch.get_num_threads()
        self._library.run_layers(ctypes.byref(self.sizes), start, end - first, given, threads)
        ready.given.entry = None  # only the pass's first layer reads it

    def run_tapped(
        self, ready: Prepared, x: Tensor, first: int, end: int, taps: Taps, dtype: torch.dtype
    ) -> None:
        """As `run_on`, and give ``taps`` the states ``[n, hidden]`` at its depths, in ``dtype``."""
        wanted = [depth for depth in sorted(taps.depths) if first <= depth <= end]
        for until in taps.pauses(first, end):
            inside = [depth for depth in wanted if depth < until]
            copies, places = x.new_empty(len(inside), *x.shape), (ctypes.c_void_p * self.depth)()
            each = list(copies)
            for depth, one in zip(inside, each, strict=True):
                places[depth] = one.data_ptr()
            ready.given.taps = ctypes.addressof(places) if each else None
            self.run_on(ready, first, until)
            for depth, one in zip(inside, each, strict=True):
                taps.take(depth, one.to(dtype))
            if until in wanted:
                taps.take(until, x.to(dtype, copy=True))
            first, wanted = until, [depth for depth in wanted if depth > until]

    def run_level(self, ready: Prepared, level: structs.Level) -> None:
        """Run one level of an EAGLE head: the first layer and the steps around it; see ``level.h``."""
        sizes, given = ctypes.byref(self.sizes), ctypes.byref(ready.given)
        threads = torch.get_num_threads()
        self._library.run_level(sizes, self.structs, given, ctypes.byref(level), threads)

    def prepared(
        self,
        x: Tensor,
        rotary: RotaryTable,
        batch: Batch,
        first: int = 0,
        entry: Tensor | None = None,
        upto: int = 0,
    ) -> Prepared:
        """Prepare a pass; for arguments see `run`. Later steps may reach positions below ``upto``."""
        count = x.shape[0]
        wide = None if entry is None else entry.float().contiguous()
        at = positions(batch)
        cos, sin = rotary.wide(max(max(at) + 1, upto))
        rows = (ctypes.c_int64 * count)(*at)
        scratch = torch.empty(count * self._scratch_row)
        trees = batch.trees or [None] * len(batch.caches)
        masks = list[object]()
        each = [
            _sequence(cast(ContiguousCache, cache), count, tree, masks)
            for cache, count, tree in zip(batch.caches, batch.counts, trees, strict=True)
        ]
        sequences = (structs.Sequence * len(each))(*each)
        one = structs.Pass(
            x.data_ptr(),
            None if wide is None else wide.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            ctypes.addressof(rows),
            ctypes.addressof(sequences),
            scratch.data_ptr(),
            count,
            len(each),
            first,
        )
        return Prepared(one, (x, wide, cos, sin, rows, scratch, masks, sequences))


def _sequence(
    cache: ContiguousCache, count: int, tree: Tree | None, kept: list[object]
) -> structs.Sequence:
    """The structure of one sequence; buffers that it points to are appended to ``kept``."""
    before = cache.length
    storage = cache.storage(before + count)
    address, capacity = storage.data_ptr(), storage.shape[3]
    if tree is None:
        return structs.Sequence(address, capacity, before, count, before, None)
    end = before + count
    visible = end - max(count, len(tree.parents))
    seen = ctypes.create_string_buffer(tree.seen_bytes(before, count))
    kept.append(seen)
    return structs.Sequence(address, capacity, before, count, visible, ctypes.addressof(seen))
