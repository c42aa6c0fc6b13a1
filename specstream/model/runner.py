"""Runs one model over one or several sequences; the only caller of a forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from specstream.config import Scheme
from specstream.errors import ModelUnsupported
from specstream.model.decoder import Decoder
from specstream.model.forward import PLAIN, Extras, ForwardInput, ForwardOutput, Taps
from specstream.model.graphs import (
    CapturePlan,
    CompiledPasses,
    compile_passes,
)
from specstream.model.kv.base import KVCache, RowCache
from specstream.model.kv.transformers import TransformersCache, check_supported
from specstream.model.native.library import library
from specstream.model.own_forward import own_forward
from specstream.model.positions import declared_positions, steady_positions
from specstream.model.quantised import check_scheme
from specstream.model.stop import NEVER, Stop

__all__ = ["ModelRunner"]

_CHAINED = 4  # steps as one where only the caller knows the end, which may be any of them
_FIRST_CAPACITY = 256  # rows that a growing cache allocates first


class ModelRunner:
    """A target or a draft, ready to run; for one thread.

    A model of the Llama family runs through `Decoder`, several sequences in one pass; any other
    through its own forward, sequence by sequence.

    Args:
        model: On its device, in evaluation mode.
        vocab_size: Width of the logits. Two models of one tokenizer often pad their output layers
            differently, and verification needs one width.
        fixed_width: Every pass has exactly this many tokens (filled up with junk whose rows are rolled
            back) over a cache that is read to its whole capacity. Sums then have one order: a token's
            logits don't depend, to the last bit, on how many tokens were verified with it.
        context_length: Bounds the context below the model's own.
        lean: False runs every model through its own forward.
        captured: Which passes `compile` captures on a GPU.
        native: Whether passes run in native code on a CPU; None: where it can be had.
        quantize: How the model's matrices are read; see `quantised_products`.

    Attributes:
        compiled: The captured passes; None: every pass is eager.
        forwards: How many inputs have been given logits.

    Raises:
        ModelUnsupported: a cache that can't be rolled back, or a model that can't be compiled.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        vocab_size: int | None = None,
        fixed_width: int | None = None,
        context_length: int | None = None,
        lean: bool = True,
        captured: CapturePlan | None = None,
        quantize: Scheme | None = None,
        native: bool | None = None,
    ) -> None:
        check_supported(model.config)
        if quantize is not None:
            check_scheme(quantize, model.device)
        on_cpu, one_width = model.device.type == "cpu", fixed_width is not None
        code = library(native) if lean and on_cpu and not one_width else None
        self._decoder = (
            Decoder.of(model, reproducible=one_width, quantize=quantize, native=code)
            if lean
            else None
        )
        if quantize is not None and self._decoder is None:
            raise ModelUnsupported(
                f"quantize: only plain models of the Llama family can be quantised here, and "
                f"{type(model).__name__} here is none; leave quantize off"
            )
        self.model: PreTrainedModel = model
        self._quantised = quantize is not None
        self.device = model.device
        self.dtype = model.dtype
        text = model.config.get_text_config()
        self.model_vocab_size = int(text.vocab_size)
        self.vocab_size = vocab_size or self.model_vocab_size
        own = min(declared_positions(text), steady_positions(text))
        # Junk that fills a pass up has positions too, and a model may have no more than its own.
        own -= fixed_width or 0
        self.context_length = min(own, context_length or own)
        self.fixed_width = fixed_width
        self.forwards = 0
        self._captured = None if on_cpu else captured
        self.compiled: CompiledPasses | None = None
        if self._captured is not None and quantize is not None:
            raise ModelUnsupported(
                "compile: recorded passes on a GPU are unquantised; choose compile or quantize"
            )
        if (captured is not None or native) and self._decoder is None:
            raise ModelUnsupported(
                f"compile: only plain models of the Llama family can be compiled, and "
                f"{type(model).__name__} here is none; leave compile off"
            )

    def compile(self, check: Callable[[], None] = lambda: None) -> None:
        """Capture the passes that were asked for; see `compile_passes`."""
        if self._captured is not None and self._decoder is not None:
            self.compiled = compile_passes(
                self._decoder,
                self._captured,
                context_length=self.context_length,
                vocab_size=self.vocab_size,
                check=check,
            )

    def chain(
        self, token_ids: Tensor, cache: KVCache, most: int, stop: Stop | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """Append ``token_ids [n]`` and go on greedily: see `CompiledPasses.chain`.

        ``most`` steps are wanted; some more or fewer may be made. None, with nothing done, where steps
        can't be made as one. With ``stop``, as far as it is kept, no step is made in vain; without,
        some that the caller then doesn't want.
        """
        if self.compiled is not None:
            return self.compiled.chain(token_ids, cast(RowCache, cache))
        if self._decoder is None or self.fixed_width is not None:
            return None
        steps, stop = (min(most, _CHAINED), NEVER) if stop is None else (most, stop)
        return self._decoder.chain(token_ids, cast(RowCache, cache), steps, self.vocab_size, stop)

    @property
    def invariant(self) -> bool:
        """Whether a token's logits have the same bits however tokens are divided into passes.

        But for passes with a rider.
        """
        return self._decoder is not None and self._decoder.whole

    @property
    def lean(self) -> bool:
        """Whether the model runs through `Decoder`."""
        return self._decoder is not None

    def new_cache(self) -> KVCache:
        """An empty cache for one sequence."""
        width = self.fixed_width
        capacity = self.context_length + 4 * width if width else None
        if self._decoder is not None:
            return self._decoder.new_cache(capacity)
        return TransformersCache(self.model.config, capacity)

    def cache_bytes(self, tokens: int) -> int:
        """Bytes of keys and values that the cache of one sequence of ``tokens`` tokens holds.

        A growing cache doubles its capacity, so a sequence may hold twice what its tokens fill.
        """
        text = self.model.config.get_text_config()
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        row: int = 2 * text.num_hidden_layers * heads * head_dim * self.dtype.itemsize
        if self.fixed_width:
            return row * (self.context_length + 4 * self.fixed_width)
        return row * max(_FIRST_CAPACITY, 1 << (tokens - 1).bit_length())

    @property
    def free_cache_bytes(self) -> int | None:
        """Unused bytes of the key-value pool; None where each cache allocates memory of its own."""
        return None if self._decoder is None else self._decoder.attention.free_bytes

    def forward(self, inputs: Sequence[ForwardInput], extras: Extras = PLAIN) -> ForwardOutput:
        """Append tokens to each sequence.

        A sequence's logits depend on the other inputs by rounding at most; with a fixed width not at
        all.

        Args:
            inputs: The sequences.
            extras: What is asked for besides logits.

        Raises:
            ModelUnsupported: extras of passes of a fixed width, or of a model that runs through its own
                forward.
        """
        if extras is not PLAIN:
            self.check_states(extras.taken)
        if self.fixed_width is not None:
            return ForwardOutput([self._fixed(item, self.fixed_width) for item in inputs])
        return self._pass(inputs, extras)

    @property
    def decoder(self) -> Decoder:
        """What the model runs through.

        Raises:
            ModelUnsupported: its own forward (`lean` is False).
        """
        if self._decoder is None:
            raise ModelUnsupported(
                f"{type(self.model).__name__} runs through its own forward here, which begins and ends "
                "at no other layer than the first and the last; choose another proposer"
            )
        return self._decoder

    def head_logits(self, hidden: Tensor) -> Tensor:
        """``[n, vocab_size]``: the output head on normed states ``[n, hidden]``, a head's for instance.

        Raises:
            ModelUnsupported: a model that runs through its own forward.
        """
        return self._fit(self.decoder.logits(hidden))

    def check_states(self, depths: Iterable[int]) -> None:
        """Refuse depths that this model can't give.

        Raises:
            ModelUnsupported: no states at such a depth, passes of a fixed width, or a model that runs
                through its own forward.
        """
        name = type(self.model).__name__
        if self._decoder is None or self.fixed_width is not None:
            raise ModelUnsupported(
                f"hidden states of {name} can't be had here: only plain models of the Llama family give "
                "them, and not in reproducible mode; choose a proposer that needs none"
            )
        layers = len(self._decoder.weights.layers)
        for depth in depths:
            if not 0 <= depth <= layers:
                raise ModelUnsupported(
                    f"{name} has {layers} layers; there are no states at {depth}"
                )

    @torch.no_grad()
    def adopt(self, weights: Mapping[str, Tensor]) -> None:
        """Take other values for the model's parameters, by their names; between two passes.

        Rows of caches stay as they are: those of earlier weights are read as if they were of these.

        Raises:
            ModelUnsupported: its passes are captured or its weights quantised, which keep the old ones.
        """
        if self.compiled is not None or self._quantised:
            raise ModelUnsupported(
                "captured passes and quantised weights can't be changed in service"
            )
        for name, value in self.model.state_dict().items():
            value.copy_(weights[name])
        if self._decoder is not None:
            self._decoder = self._decoder.renewed()

    def _pass(self, inputs: Sequence[ForwardInput], extras: Extras = PLAIN) -> ForwardOutput:
        """As many model calls as the model needs: one, or one per sequence."""
        self.forwards += len(inputs) if extras.logits else 0
        if self._decoder is None:
            return ForwardOutput([self._fit(own_forward(self.model, item)) for item in inputs])
        chains = not any(item.entered or item.tree for item in inputs)
        if self.compiled is not None and extras is PLAIN and chains:
            found = self.compiled(
                [item.token_ids for item in inputs],
                [cast(RowCache, item.cache) for item in inputs],
                [item.keep for item in inputs],
            )
            if found is not None:
                return ForwardOutput([self._fit(logits) for logits in found])
        return self._decode(self._decoder, inputs, extras)

    def _decode(
        self, decoder: Decoder, inputs: Sequence[ForwardInput], extras: Extras
    ) -> ForwardOutput:
        counts = [item.token_ids.shape[0] for item in inputs]
        keeps = [item.keep for item in inputs]
        tokens = inputs[0].token_ids
        if len(inputs) > 1:
            tokens = torch.cat([item.token_ids for item in inputs])
        taps = None if extras is PLAIN else Taps(extras, counts)
        hidden = decoder(
            tokens,
            [cast(RowCache, item.cache) for item in inputs],
            counts,
            keeps,
            [item.tree for item in inputs],
            [item.entered for item in inputs],
            taps,
            extras.rider,
            stop=None if extras.logits else max(extras.depths),
        )
        states = [] if taps is None else taps.states
        if not extras.logits:
            return ForwardOutput(states=states)
        logits = self._fit(decoder.logits(hidden))
        each = [logits] if len(keeps) == 1 else list(logits.split_with_sizes(keeps))
        return ForwardOutput(each, states)

    def _fixed(self, item: ForwardInput, width: int) -> Tensor:
        tokens, count, cache = item.token_ids, item.token_ids.shape[0], item.cache
        if item.tree is not None:
            raise ValueError("a pass of fixed width takes chains only")
        before, junk = cache.length, width - count
        if junk < 0:
            raise ValueError(f"a pass of fixed width {width} can't take {count} tokens")
        tokens = torch.cat([tokens, tokens.new_zeros(junk)])
        (logits,) = self._pass([ForwardInput(tokens, cache, keep=width)]).logits
        cache.rollback_to(before + count)
        return logits[count - item.keep : count]

    def _fit(self, logits: Tensor) -> Tensor:
        missing = self.vocab_size - logits.shape[-1]
        if missing > 0:
            return F.pad(logits, (0, missing), value=-torch.inf)
        return logits[..., : self.vocab_size] if missing else logits
