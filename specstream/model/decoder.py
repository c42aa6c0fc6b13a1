"""The forward pass of the Llama family over flat tokens, for every back-end of attention.

A small model, or any model on a fast device, spends more time between its matrix products than in
them: module calls, mask building, cache bookkeeping. Here products that read one input are one
product, the tokens of several sequences are concatenated without padding, and what doesn't change
between passes is computed once. The model's own modules keep working: their weights become views.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from specstream.config import Scheme
from specstream.model.agreement import agrees
from specstream.model.attention.base import AttentionBackend, AttentionPlan, Batch
from specstream.model.attention.contiguous import ContiguousAttention
from specstream.model.attention.pooled import PooledAttention
from specstream.model.entry import Entered, common_depth, entered_states
from specstream.model.forward import Taps
from specstream.model.kv.base import RowCache
from specstream.model.layers import Layer, layer_of, select
from specstream.model.native.chain import NativeChain
from specstream.model.native.layers import NativeLayers
from specstream.model.native.library import Library
from specstream.model.native.matrix import NativeMatrix, native_takes
from specstream.model.norms import rms_norm
from specstream.model.products import Product, can_pack, product
from specstream.model.quantised import Multiply, Quantised, quantised_products
from specstream.model.rider import Rider
from specstream.model.rotations import rotations
from specstream.model.stop import NEVER, Stop
from specstream.model.tree import Tree
from specstream.model.weights import DecoderWeights, RotaryTable

__all__ = ["Decoder"]

_log = logging.getLogger("specstream.model")

_PACKED_BYTES = 2 * 2**30  # a larger model's matrices are not kept twice


class Decoder:
    """Runs a Llama-family model; see `of`.

    Args:
        weights: The model's tensors.
        rotary: Cosines and sines of its positions.
        attention: Default: `PooledAttention` on a GPU, `ContiguousAttention` elsewhere.
        quantize: Products are those of `quantised_products`, and no matrix of a layer is kept besides.
        native: Native code, which then runs all passes but those of riders and fixed capacities.
    """

    def __init__(
        self,
        weights: DecoderWeights,
        rotary: RotaryTable,
        attention: AttentionBackend | None = None,
        *,
        quantize: Scheme | None = None,
        native: Library | None = None,
    ) -> None:
        self.packed = packed = native is None and quantize is None and _packs(weights)
        self.native = native
        multiply: Multiply = partial(product, packed=packed, native=native)
        head = multiply
        if quantize is not None:
            multiply, head = quantised_products(quantize, weights.device)
        matrix = multiply if isinstance(multiply, Quantised) else None
        self._whole = NativeLayers.of(native, weights, matrix)
        self._head = head(weights.head, None)
        self._norm = rms_norm(weights.norm, weights.eps)
        norms = partial(rms_norm, eps=weights.eps)
        self._layers = [layer_of(weights, one, norms, multiply) for one in weights.layers]
        if quantize is not None:
            weights = weights.without_matrices()
        self.weights, self.rotary = weights, rotary
        if attention is None:
            on_gpu = weights.device.type == "cuda"
            attention = PooledAttention(weights) if on_gpu else ContiguousAttention(weights)
        self.attention = attention
        self._chain = NativeChain.of(native, self._whole, self._head, self.weights, rotary)

    @classmethod
    def of(
        cls,
        model: PreTrainedModel,
        *,
        reproducible: bool = False,
        quantize: Scheme | None = None,
        native: Library | None = None,
    ) -> Decoder | None:
        """The decoder of a model of the Llama family; None for any other model.

        The decoder is also tried: if its logits of a few tokens differ from the model's own by more
        than rounding, a warning is logged and None returned; if only those of native code do, it goes
        without. ``reproducible`` chooses attention over contiguous caches on every device, whose
        capacity can be fixed. With ``quantize`` the same decoder is tried before its weights are
        quantised.
        """
        weights = DecoderWeights.of(model)
        if weights is None:
            return None
        attention = ContiguousAttention(weights) if reproducible else None
        rotary = RotaryTable(model, weights.head_dim)
        decoder = cls(weights, rotary, attention, native=native)
        if not decoder._agrees(model):
            if native is None:
                return None
            decoder = cls(weights, rotary, attention)
            if not decoder._agrees(model):
                return None
        if quantize is None:
            return decoder
        return cls(weights, rotary, quantize=quantize, native=native)

    def _agrees(self, model: PreTrainedModel) -> bool:
        """Of tokens read in two passes."""
        cache = self.new_cache()

        def logits_of(tokens: Tensor) -> Tensor:
            parts = [(part, part.shape[0]) for part in (tokens[:5], tokens[5:])]
            return self.logits(torch.cat([self(part, [cache], [count]) for part, count in parts]))

        return agrees(model, logits_of, native=self.native is not None)

    def renewed(self) -> Decoder:
        """The same decoder once values of its weights have changed: packed matrices are copies."""
        return Decoder(self.weights, self.rotary, self.attention, native=self.native)

    def products(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        """The product of a head's weight.

        In native code one of bfloat16 is read as integers of eight bits: what a head drafts is verified,
        and half the memory is half the time.
        """
        if self.native is not None and native_takes(weight):
            return self.native_matrix(weight, bias)
        packed = can_pack(weight.dtype, weight.device)
        return product(weight, bias, packed=packed, native=self.native)

    def native_matrix(self, weight: Tensor, bias: Tensor | None = None) -> NativeMatrix:
        """`products`, where there is native code that takes the weight."""
        assert self.native is not None
        eight = weight.dtype is torch.bfloat16
        return NativeMatrix(self.native, weight, bias, "int8" if eight else None)

    def new_cache(self, fixed_capacity: int | None = None) -> RowCache:
        """An empty cache for one sequence."""
        return self.attention.new_cache(fixed_capacity)

    def __call__(
        self,
        tokens: Tensor,
        caches: Sequence[RowCache],
        counts: Sequence[int],
        keeps: Sequence[int] | None = None,
        trees: Sequence[Tree | None] | None = None,
        entered: Sequence[Entered | None] | None = None,
        taps: Taps | None = None,
        rider: Rider | None = None,
        stop: int | None = None,
    ) -> Tensor:
        """Append tokens to each sequence; final hidden states ``[kept, hidden]``.

        Args:
            tokens: ``[N]`` int64, the sequences' tokens concatenated.
            caches: One per sequence; each grows by its count.
            counts: Tokens of each sequence, in order; each at least 1.
            keeps: Of how many last tokens of each sequence states are returned. Default: all.
            trees: Per sequence the tree that its last tokens form, or None for a chain.
            entered: Per sequence its first tokens that have entered before, or None; one depth for all.
                Such a sequence has no tree.
            taps: Takes states of all tokens while the pass runs.
            rider: Rows that travel along.
            stop: Only the first so many layers: the states ``[N, hidden]`` after them, without a norm.
                Of the new rows the other layers have none: see `Extras.logits`.
        """
        if trees is not None and not any(trees):
            trees = None
        batch = Batch(caches, counts, keeps or counts, trees)
        begun = None
        if entered is not None and (depth := common_depth(entered)):
            if taps is None or min(taps.depths, default=depth) >= depth:
                begun = depth, entered_states(tokens, batch, entered, partial(self, stop=depth))
        if rider is not None:
            rider.prepare(batch)
        if rider is None and self._whole is not None and self._whole.take(batch):
            x = self._native_run(self._whole, tokens, batch, taps, begun, stop)
        else:
            cos, sin = rotations(self.rotary, batch, self.weights.device)
            plan = self.attention.plan(batch)
            narrow = stop is None and sum(batch.keeps) < tokens.shape[0]
            x = self.run(
                tokens,
                cos,
                sin,
                plan,
                narrow=narrow,
                taps=taps,
                begun=begun,
                rider=rider,
                stop=stop,
            )
        for cache, count in zip(caches, counts, strict=True):
            cache.append_to(cache.length + count)
        return x

    def run(
        self,
        tokens: Tensor,
        cos: Tensor,
        sin: Tensor,
        plan: AttentionPlan,
        *,
        narrow: bool = False,
        taps: Taps | None = None,
        begun: tuple[int, Tensor] | None = None,
        rider: Rider | None = None,
        stop: int | None = None,
    ) -> Tensor:
        """The layers and the final norm; touches no cache but through ``plan``.

        With ``narrow`` the last layer computes the kept tokens only, of all others just keys and
        values; unless a tap needs that layer's states of all tokens.

        Args:
            tokens: ``[N]`` int64.
            cos: ``[N, 1, head_dim]`` of each token's position; ``sin`` likewise, see `RotaryTable`.
            sin: See ``cos``.
            plan: Attention of this pass.
            narrow: Return the kept tokens' states only.
            taps: See `__call__`.
            begun: Begin after so many layers, with all tokens' states ``[N, hidden]``, which are
                overwritten. Default: with the embeddings.
            rider: See `__call__`.
            stop: See `__call__`.
        """
        end = len(self._layers) if stop is None else stop
        wanted = taps.depths if taps is not None else ()
        last = end - 1 if narrow and end not in wanted else None
        first, x = begun or (0, F.embedding(tokens, self.weights.embedding))
        own, count = plan, tokens.shape[0]
        for index in range(first, end):
            layer = self._layers[index]
            if taps is not None and index in wanted:
                taps.take(index, x[:count].clone())
            if rider is not None and index >= rider.depth:
                if index == rider.depth:
                    x, cos, sin, plan = rider.board(x, cos, sin, plan)
                layer = rider.layer(index)
            x = layer(x, cos, sin, plan, index, plan.narrow() if index == last else None)
        if rider is not None:
            x = rider.leave(x)
        if taps is not None and end in wanted:
            taps.take(end, x)
            x = select(x, own.narrow()) if narrow else x
        return self._norm(x) if stop is None else x

    def chain(
        self, tokens: Tensor, cache: RowCache, steps: int, choices: int, stop: Stop = NEVER
    ) -> tuple[Tensor, Tensor] | None:
        """Greedy steps as one call, see `NativeChain`; None, with nothing done, without native code."""
        if self._chain is None or cache.fixed_capacity is not None:
            return None
        return self._chain(tokens, cache, steps, choices, stop)

    def _native_run(
        self,
        native: NativeLayers,
        tokens: Tensor,
        batch: Batch,
        taps: Taps | None,
        begun: tuple[int, Tensor] | None,
        stop: int | None,
    ) -> Tensor:
        """As `run`, in native code; hidden states are float32 between layers, and before its head."""
        end = len(self._layers) if stop is None else stop
        first, x = begun or (0, F.embedding(tokens, self.weights.embedding))
        # What ends early may go on later: rounded states would change the last bits.
        dtype = self.weights.dtype if stop is None else torch.float32
        x = x.float().contiguous()
        ready = native.prepared(x, self.rotary, batch)
        if taps is None:
            native.run_on(ready, first, end)
        else:
            native.run_tapped(ready, x, first, end, taps, dtype)
        if stop is not None:
            return x.to(dtype)
        final = self._norm(batch.kept(x))
        return final if isinstance(self._head, NativeMatrix) else final.to(dtype)

    @property
    def whole(self) -> bool:
        """Whether native code runs its layers and its head."""
        return self._whole is not None and isinstance(self._head, NativeMatrix)

    @property
    def layers(self) -> Sequence[Layer]:
        """The layers."""
        return self._layers

    def normed(self, states: Tensor) -> Tensor:
        """The final norm of states ``[n, hidden]``, of any depth."""
        return self._norm(states)

    def logits(self, hidden: Tensor) -> Tensor:
        """``[n, V]`` of hidden states ``[n, hidden]``."""
        return self._head(hidden)


def _packs(weights: DecoderWeights) -> bool:
    """Whether a second copy of the matrices is kept in the layout of this CPU's kernels."""
    return weights.nbytes <= _PACKED_BYTES and can_pack(weights.dtype, weights.device)
