"""Several greedy steps of a draft in one call."""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor

from specstream.model.attention.base import Batch
from specstream.model.kv.base import RowCache
from specstream.model.native import structs
from specstream.model.native.layers import NativeLayers
from specstream.model.native.library import Library
from specstream.model.native.matrix import NativeMatrix
from specstream.model.stop import Stop
from specstream.model.weights import DecoderWeights, RotaryTable

__all__ = ["NativeChain"]

_MOST_BYTES = 32 * 2**20  # of a model whose step takes no longer than calling it


class NativeChain:
    """Greedy steps of one sequence of a model.

    Args:
        library: Native code.
        layers: The model's.
        head: The model's output head.
        weights: The model's embedding and norm.
        rotary: Of the model's positions.
    """

    def __init__(
        self,
        library: Library,
        layers: NativeLayers,
        head: NativeMatrix,
        weights: DecoderWeights,
        rotary: RotaryTable,
    ) -> None:
        self._library, self._layers, self._head = library, layers, head
        self._embedding, self._rotary = weights.embedding.contiguous(), rotary
        self._norm = weights.norm.float().contiguous()
        self._logits = torch.empty(head.shape[0])

    @classmethod
    def of(
        cls,
        library: Library | None,
        layers: NativeLayers | None,
        head: object,
        weights: DecoderWeights,
        rotary: RotaryTable,
    ) -> NativeChain | None:
        """None where not all of a model is native, or the model is large.

        Steps that a draft then doesn't want are wasted, which is cheap for small models only.
        """
        if library is None or layers is None or weights.nbytes > _MOST_BYTES:
            return None
        if not isinstance(head, NativeMatrix):
            return None
        return cls(library, layers, head, weights, rotary)

    def __call__(
        self, tokens: Tensor, cache: RowCache, steps: int, choices: int, stop: Stop
    ) -> tuple[Tensor, Tensor]:
        """Append ``tokens [n]`` and go on: ``tokens [made]`` and their probabilities, ``[made]``.

        The cache grows by n rows and those of all choices but the last.

        Args:
            tokens: int64.
            cache: Contiguous, of no fixed capacity.
            steps: Tokens to write at most, at least 1; with `Stop.prices` one more than these.
            choices: Only the vocabulary's first so many can be chosen.
            stop: Where to end earlier.
        """
        if stop.prices:
            steps = min(steps, len(stop.prices) + 1)
        before, count = cache.length, tokens.shape[0]
        end = before + count + steps - 1
        cache.reserve(end)
        x = F.embedding(tokens, self._embedding).float()
        ready = self._layers.prepared(x, self._rotary, Batch([cache], [count], [1]), upto=end)
        ends = (ctypes.c_int64 * len(stop.ends))(*stop.ends)
        edges, chances, prices = (
            (ctypes.c_double * len(one))(*one) for one in (stop.edges, stop.chances, stop.prices)
        )
        chosen, confidences = torch.empty(steps, dtype=torch.int64), torch.empty(steps)
        chain = structs.Chain(
            self._head.struct,
            self._norm.data_ptr(),
            self._embedding.data_ptr(),
            steps,
            min(choices, self._head.shape[0]),
            self._logits.data_ptr(),
            chosen.data_ptr(),
            confidences.data_ptr(),
            ctypes.addressof(ends),
            ctypes.addressof(edges),
            ctypes.addressof(chances),
            ctypes.addressof(prices) if stop.prices else None,
            len(ends),
            len(edges),
            stop.survival,
            stop.ceiling,
        )
        self._library.run_chain(
            ctypes.byref(self._layers.sizes),
            self._layers.structs,
            self._layers.depth,
            ctypes.byref(ready.given),
            ctypes.byref(chain),
            torch.get_num_threads(),
        )
        made = int(chain.made)
        cache.append_to(before + count + made - 1)
        return chosen[:made], confidences[:made]
