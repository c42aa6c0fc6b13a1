"""A head's level, or several greedy steps of a draft, in one native call."""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor

from specstream.model.attention.base import Batch, kept_rows
from specstream.model.kv.base import RowCache
from specstream.model.native import structs
from specstream.model.native.layers import NativeLayers
from specstream.model.native.matrix import NativeMatrix
from specstream.model.tokens.spelling import NEVER, StopRule
from specstream.model.weights import DecoderWeights, RotaryTable

__all__ = ["MOST_BYTES", "NativeChain", "NativeLevel"]


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
        self,
        layers: NativeLayers,
        head: NativeMatrix,
        weights: DecoderWeights,
        rotary: RotaryTable,
    ) -> None:
        self._layers, self._head = layers, head
        self._embedding, self._rotary = weights.embedding.contiguous(), rotary
        self._norm = weights.norm.float().contiguous()
        self._logits = torch.empty(head.shape[0])

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
        chosen, confidences = torch.empty(steps, dtype=torch.int64), torch.empty(steps)
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
