"""The forward pass of the Llama family over flat tokens, for every back-end of attention.

A small model, or any model on a fast device, spends more time between its matrix products than in
them: module calls, mask building, cache bookkeeping. So products that read the same input are joined
into one, the tokens of several sequences are concatenated without padding, and whatever doesn't change
between passes is computed once. transformers' modules stay usable: their weights become views.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from specstream.checks import first_line
from specstream.config import Scheme
from specstream.model.attention.base import AttentionBackend, AttentionPlan, Batch
from specstream.model.attention.contiguous import ContiguousAttention
from specstream.model.attention.pooled import PooledAttention, PooledPlan
from specstream.model.forward import (
    PLAIN,
    Extras,
    ForwardInput,
    ForwardOutput,
    Taps,
    common_depth,
    entered_states,
)
from specstream.model.fused.layers import FusedLayers
from specstream.model.kv import RowCache
from specstream.model.layers import Product, can_pack, layer_of, product, rms_norm, select
from specstream.model.native.layers import MOST_BYTES, NativeChain, NativeLayers
from specstream.model.native.library import Library
from specstream.model.native.matrix import NativeMatrix, native_takes
from specstream.model.numerics import off_by, rounding, trial_tokens
from specstream.model.quantised import Multiply, quantised_products
from specstream.model.weights import DecoderWeights, RotaryTable

__all__ = ["Decoder"]

_log = logging.getLogger("specstream.model")

_PACKED_BYTES = 2 * 2**30  # largest model whose matrices are kept a second time, in packed layout


class Decoder:
    """Runs a Llama-family model. Made by `of`, which checks it against the model.

    Args:
        weights: The model's tensors.
        rotary: Cosines and sines of the model's positions.
        attention: Default: `PooledAttention` on a GPU, `ContiguousAttention` elsewhere.
        quantize: Multiply by `quantised_products`; the layers' unquantised matrices are not kept.
        native: Native code, which runs every pass of a model that it can compute.
        fuse: Let Triton's kernels do what lies between the products, with pooled attention.

    Attributes:
        layers: The layers in torch's operations, first to last; native passes share their matrices.
        normed: Applies the final norm to states ``[n, hidden]`` of any depth.
        logits: Gives ``[n, V]`` of normed states ``[n, hidden]``.
        chain: Makes several greedy steps in one native call; None if native code can't, or needn't.
    """

    def __init__(
        self,
        weights: DecoderWeights,
        rotary: RotaryTable,
        attention: AttentionBackend | None = None,
        *,
        quantize: Scheme | None = None,
        native: Library | None = None,
        fuse: bool = False,
    ) -> None:
        small = weights.nbytes <= _PACKED_BYTES and can_pack(weights.dtype, weights.device)
        self.packed = packed = native is None and quantize is None and small
        self.native = native
        multiply: Multiply = partial(product, packed=packed, native=native)
        head = multiply
        if quantize is not None:
            multiply, head = quantised_products(quantize, weights.device)
        norms = partial(rms_norm, eps=weights.eps)
        self.layers = [layer_of(weights, one, norms, multiply) for one in weights.layers]
        self._whole = NativeLayers.of(native, weights, self.layers)
        self._fused = FusedLayers.of(weights, self.layers) if fuse else None
        self.logits, self.normed = head(weights.head, None), norms(weights.norm)
        if quantize is not None:
            weights = weights.without_matrices()
        self.weights, self.rotary = weights, rotary
        if attention is None:
            on_gpu = weights.device.type == "cuda"
            attention = PooledAttention(weights) if on_gpu else ContiguousAttention(weights)
        self.attention = attention
        self.chain: NativeChain | None = None
        if self._whole is not None and isinstance(self.logits, NativeMatrix):
            if weights.nbytes <= MOST_BYTES:
                self.chain = NativeChain(self._whole, self.logits, weights, rotary)

    @classmethod
    def of(
        cls,
        model: PreTrainedModel,
        *,
        reproducible: bool = False,
        quantize: Scheme | None = None,
        native: Library | None = None,
        pool_share: float = 0.5,
    ) -> Decoder | None:
        """Make the decoder of a Llama-family model; None for any other model.

        The decoder's logits of a few tokens are compared with the model's own. If they differ by more
        than rounding, or a kernel breaks, a warning is logged; the decoder is tried again without native
        code and fused kernels, and None is returned if that differs, too. With ``quantize`` the
        comparison is made before the weights are quantised. ``reproducible`` chooses attention over
        contiguous caches on every device, because their capacity can be fixed. On a GPU the key-value
        pool takes ``pool_share`` of the free memory.
        """
        weights = DecoderWeights.of(model)
        if weights is None:
            return None
        attention: AttentionBackend
        if reproducible or weights.device.type != "cuda":
            attention = ContiguousAttention(weights)
        else:
            attention = PooledAttention(weights, share=pool_share)
        rotary = RotaryTable.of(model, weights.head_dim)
        fuse = weights.device.type == "cuda" and not reproducible
        decoder = cls(weights, rotary, attention, native=native, fuse=fuse)
        agrees = decoder._agrees(model)
        if not agrees and decoder.special:
            fuse = False
            decoder = cls(weights, rotary, attention)
            agrees = decoder._agrees(model)
        if not agrees:
            return None
        if quantize is None:
            return decoder
        return cls(weights, rotary, attention, quantize=quantize, native=native, fuse=fuse)

    @property
    def special(self) -> bool:
        """Whether native code or fused kernels run the layers, rather than torch's operations."""
        return self.native is not None or self._fused is not None

    @torch.inference_mode()
    def _agrees(self, model: PreTrainedModel) -> bool:
        """Whether logits of eight trial tokens equal those of the model's own forward, up to rounding.

        The tokens are read in two passes, so that the cache takes part. Logs a warning if the logits
        differ. NaN logits of the model itself also return False, without a warning.
        """
        tokens = trial_tokens(8, model.config.get_text_config().vocab_size, model.device)
        wanted = model(input_ids=tokens.unsqueeze(0), use_cache=False).logits[0].float()
        if bool(wanted.isnan().any()):
            return False  # damaged weights: reported by `check_decoding`
        cache, found, name = self.new_cache(), list[Tensor](), type(model).__name__
        own = "torch runs its passes" if self.special else "its own forward is used"
        try:
            for part in (tokens[:5], tokens[5:]):
                found += self([ForwardInput(part, cache, part.shape[0])]).logits
        except RuntimeError as error:
            if self._fused is None or isinstance(error, torch.OutOfMemoryError):
                raise
            _log.warning("a fused kernel broke (%s); %s", first_line(error), own)
            return False
        off = off_by(torch.cat(found), wanted)
        if off <= rounding(model.dtype):
            return True
        whose = "native code's" if self.native else "fused kernels'" if self._fused else "the decoder's"
        _log.warning("%s logits of %s are off by %.3g of the largest; %s", whose, name, off, own)
        return False

    def renewed(self) -> Decoder:
        """Make the decoder again after its weights have changed: packed matrices are copies."""
        fuse = self._fused is not None
        return Decoder(self.weights, self.rotary, self.attention, native=self.native, fuse=fuse)

    def products(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        """Return the product with a weight of a drafting head.

        Native code reads a bfloat16 weight as 8-bit integers, which halves memory traffic and so the
        time; the rounding can't change the output, as every draft is verified.
        """
        if self.native is None:
            return product(weight, bias, packed=can_pack(weight.dtype, weight.device))
        if native_takes(weight):
            eight = weight.dtype is torch.bfloat16
            return NativeMatrix(self.native, weight, bias, "int8" if eight else None)
        # Native passes give states in float32 or in the model's dtype; torch's kernels need one dtype.
        wide = None if bias is None else bias.float()
        multiply = product(weight.float(), wide, packed=can_pack(torch.float32, weight.device))
        return lambda x: multiply(x.float()).type_as(x)

    def new_cache(self, fixed_capacity: int | None = None) -> RowCache:
        """An empty cache for one sequence."""
        return self.attention.new_cache(fixed_capacity)

    def __call__(
        self,
        inputs: Sequence[ForwardInput],
        extras: Extras = PLAIN,
        fit: Callable[[Tensor], Tensor] = lambda logits: logits,
    ) -> ForwardOutput:
        """Append tokens to each sequence, in one pass; return logits and what ``extras`` asks for.

        See `ModelRunner.forward`; here logits have the model's own width, unless ``fit``, which is
        applied to all of them, changes that.

        Raises:
            ValueError: inputs are entered to different depths.
        """
        trees = [item.tree for item in inputs]
        batch = Batch(
            [cast(RowCache, item.cache) for item in inputs],
            [item.token_ids.shape[0] for item in inputs],
            [item.keep for item in inputs],
            trees if any(trees) else None,
        )
        tokens = torch.cat([item.token_ids for item in inputs])
        taps = None if extras is PLAIN else Taps(extras, batch.counts)
        if extras.rider is not None:
            extras.rider.prepare(batch)
        begun, depth = None, common_depth(inputs)
        # A tap below that depth needs states that `Entered` doesn't hold: then start over.
        if depth and min(extras.taken, default=depth) >= depth:
            begun = depth, entered_states(inputs, depth, self)
        stop = None if extras.logits else max(extras.depths)
        if self._whole is not None:
            x = self._native_run(self._whole, tokens, batch, taps, begun, stop)
        else:
            plan = self.attention.plan(batch)
            cos, sin = self.rotary.rows(plan.positions, batch.end)
            narrow = stop is None and sum(batch.keeps) < tokens.shape[0]
            x = self.run(tokens, cos, sin, plan, narrow=narrow, taps=taps, begun=begun, stop=stop)
        batch.append()
        states = [] if taps is None else taps.states
        if taps is not None and extras.rider is not None:
            extras.rider.run(taps.at(extras.rider.depth))
        logits = fit(self.logits(x)).split_with_sizes(list(batch.keeps)) if extras.logits else ()
        return ForwardOutput(list(logits), states)

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
        stop: int | None = None,
    ) -> Tensor:
        """Run the layers and the final norm; caches are touched through ``plan`` only.

        With ``narrow`` the last layer computes only keys and values for tokens that are not kept,
        unless a tap needs that layer's states of all tokens.

        Args:
            tokens: ``[N]`` int64.
            cos: ``[N, 1, head_dim]``, of each token's position; see `RotaryTable`.
            sin: As ``cos``.
            plan: Attention of this pass.
            narrow: Return the kept tokens' states only.
            taps: Receives states of all tokens while the pass runs.
            begun: The number of layers already done and all tokens' states ``[N, hidden]`` after them,
                which are overwritten. Default: start from the embeddings.
            stop: Run only this many layers, without the final norm. The other layers then lack rows of
                these tokens: see `Extras.logits`.
        """
        first, x = begun or (0, F.embedding(tokens, self.weights.embedding))
        if self._fused is not None and isinstance(plan, PooledPlan):
            return self._fused.run(x, cos, sin, plan, first=first, stop=stop, narrow=narrow, taps=taps)
        end = len(self.layers) if stop is None else stop
        wanted = taps.depths if taps is not None else ()
        last = end - 1 if narrow and end not in wanted else None
        for index in range(first, end):
            if taps is not None and index in wanted:
                taps.take(index, x.clone())
            rows = plan.narrow() if index == last else None
            x = self.layers[index](x, cos, sin, plan, index, rows)
        if taps is not None and end in wanted:
            taps.take(end, x)
            x = select(x, plan.narrow()) if narrow else x
        return self.normed(x) if stop is None else x

    def _native_run(
        self,
        native: NativeLayers,
        tokens: Tensor,
        batch: Batch,
        taps: Taps | None,
        begun: tuple[int, Tensor] | None,
        stop: int | None,
    ) -> Tensor:
        """As `run`, in native code: states are float32 between the layers and for a native head."""
        end = len(self.layers) if stop is None else stop
        first, x = begun or (0, F.embedding(tokens, self.weights.embedding))
        # A pass that stops early may be continued: rounding its states would change the last bits.
        dtype = self.weights.dtype if stop is None else torch.float32
        x = x.float().contiguous()
        ready = native.prepared(x, self.rotary, batch)
        if taps is None:
            native.run_on(ready, first, end)
        else:
            native.run_tapped(ready, x, first, end, taps, dtype)
        if stop is not None:
            return x.to(dtype)
        final = self.normed(batch.kept(x))
        return final if isinstance(self.logits, NativeMatrix) else final.to(dtype)

    @property
    def whole(self) -> bool:
        """Whether native code runs both the layers and the output head."""
        return self._whole is not None and isinstance(self.logits, NativeMatrix)
