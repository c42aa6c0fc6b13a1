"""One level of an EAGLE head's draft in one native call, from embeddings to the likeliest tokens."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from specstream.model.attention.base import Batch, kept_rows
from specstream.model.native import structs
from specstream.model.native.layers import NativeLayers
from specstream.model.native.matrix import NativeMatrix
from specstream.model.weights import RotaryTable

__all__ = ["NativeLevel"]


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
        x, entry = torch.empty(count, hidden), torch.empty(count, 2 * hidden)
        ready = self._layers.prepared(x, self._rotary, batch, entry=entry)
        logits = torch.empty(len(kept), self._output.shape[0])
        finals, states = torch.empty(2, len(kept), hidden)
        chances = torch.empty(len(kept), most)
        choices = torch.empty(len(kept), most, dtype=torch.int64)
        self._layers.run_level(
            ready,
            structs.Level(
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
