"""Runs one model's forward passes, over one or several sequences."""

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
from specstream.model.forward import PLAIN, Extras, ForwardInput, ForwardOutput
from specstream.model.graphs import CapturePlan, DraftedChain, Draws, Graphs, compile_passes
from specstream.model.kv import FIRST_CAPACITY, KVCache, RowCache
from specstream.model.native.library import library, native_library
from specstream.model.own_forward import (
    TransformersCache,
    check_supported,
    declared_positions,
    own_forward,
    steady_positions,
)
from specstream.model.quantised import check_scheme, named
from specstream.model.tokens.spelling import NEVER, StopRule

__all__ = ["ModelRunner"]

_CHAINED = 4  # greedy steps per native call if no `StopRule` is known: more might be discarded


class ModelRunner:
    """A target or a draft, ready to run; for one thread.

    A model of the Llama family runs through `Decoder`, several sequences in one pass; any other model
    runs through its own forward, sequence by sequence.

    Args:
        model: On its device, in evaluation mode.
        vocab_size: Width of the logits. Default: the model's. Two models of one tokenizer often pad
            their output layers differently, and verification needs one width.
        fixed_width: Every pass has exactly this many tokens (filled up with junk whose rows are rolled
            back) over a cache that is read to its whole capacity. Sums then have one order: a token's
            logits don't depend, to the last bit, on how many tokens were verified with it.
        context_length: Bounds the context below the model's own.
        lean: False runs every model through its own forward.
        captured: Which passes `compile` captures on a GPU.
        native: Whether passes run in native code on a CPU; None: if native code is available.
        quantize: Scheme of the model's matrices; see `quantised_products`.
        setting: The name of the setting that ``quantize`` is from, for errors.
        pool_share: On a GPU the key-value pool takes this share of the free memory.

    Attributes:
        model_vocab_size: Width of the model's own logits.
        quantised: Whether ``quantize`` named a scheme.
        compiled: What was captured; None: every pass is eager.
        slowed: Why passes on a CPU aren't native, though the model's could be; None otherwise.
        forwards: Number of inputs that passes have computed logits for.

    Raises:
        ModelUnsupported: the model keeps state that can't be rolled back, or can't be compiled or
            quantised as asked.
        ConfigError: the device can't multiply by quantised matrices, or ``native`` is True and native
            code is not available.
    """

    compiled: Graphs | None = None

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
        setting: str = "quantize",
        pool_share: float = 0.5,
    ) -> None:
        check_supported(model.config)
        on_cpu, one_width = model.device.type == "cpu", fixed_width is not None
        code = library(native) if lean and on_cpu and not one_width else None
        self._decoder: Decoder | None = None
        with named(setting):
            if quantize is not None:
                check_scheme(quantize, model.device)
            if lean:
                self._decoder = Decoder.of(
                    model, reproducible=one_width, quantize=quantize, native=code, pool_share=pool_share
                )
        if self._decoder is None and (quantize is not None or native):
            name, done = ("compile", "compiled") if quantize is None else (setting, "quantised")
            raise ModelUnsupported(
                f"{name}: only plain models of the Llama family can be {done}, and "
                f"{type(model).__name__} here is none; leave {name} off"
            )
        free = lean and on_cpu and not one_width and native is None and self._decoder is not None
        reason = native_library() if free and code is None else None
        self.slowed = reason if isinstance(reason, str) else None
        self.model: PreTrainedModel = model
        self.quantised = quantize is not None
        self.device = model.device
        self.dtype = model.dtype
        text = model.config.get_text_config()
        self.model_vocab_size = int(text.vocab_size)
        self.vocab_size = vocab_size or self.model_vocab_size
        own = min(declared_positions(text), steady_positions(text))
        # The junk tokens that fill up a pass have positions, too, which must lie in the model's range.
        own -= fixed_width or 0
        self.context_length = min(own, context_length or own)
        self.fixed_width = fixed_width
        self.forwards = 0
        self._captured = None if on_cpu else captured

    def compile(
        self, check: Callable[[], None] = lambda: None, most: int = 1, depths: Sequence[int] = ()
    ) -> None:
        """Capture the passes of the plan, if there is one; see `compile_passes`.

        ``most`` is the greatest number of sequences in a pass; ``depths`` are those that hidden states
        will be asked for at.
        """
        if self._captured is not None and self._decoder is not None:
            self.compiled = compile_passes(
                self._decoder,
                self._captured,
                context_length=self.context_length,
                most=most,
                vocab_size=self.vocab_size,
                depths=depths,
                check=check,
            )

    def chain(
        self, token_ids: Tensor, cache: KVCache, most: int, stop: StopRule | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """Append ``token_ids [n]``, then greedy choices, in one call of native code.

        About ``most`` steps are made; there may be fewer. ``stop`` says where the chain may end earlier;
        without it at most four steps are made, as the caller may discard some. Returns
        ``choices [steps]`` and ``confidences [steps]``, the probabilities of the choices; None, with
        nothing done, if several steps can't be made in one call.
        """
        if self._decoder is None or self._decoder.chain is None:
            return None
        steps, stop = (min(most, _CHAINED), NEVER) if stop is None else (most, stop)
        return self._decoder.chain(token_ids, cast(RowCache, cache), steps, self.vocab_size, stop)

    @property
    def captured_steps(self) -> int:
        """How many tokens `chains` drafts for each sequence; 0 if no chains are captured."""
        chains = None if self.compiled is None else self.compiled.chains
        return chains.steps if chains is not None and chains.captured else 0

    def chains(
        self, tokens: Sequence[Tensor], caches: Sequence[KVCache], draws: Draws | None = None
    ) -> DraftedChain | None:
        """Draft several tokens for several sequences in a captured chain; see `GraphedChains`.

        Returns None, with nothing done, if no captured chain fits.
        """
        if self.compiled is None or self.compiled.chains is None:
            return None
        return self.compiled.chains(tokens, cast("Sequence[RowCache]", caches), draws)

    @property
    def invariant(self) -> bool:
        """Whether a token's logits are bitwise the same however tokens are divided into passes."""
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
        return row * max(FIRST_CAPACITY, 1 << (tokens - 1).bit_length())

    @property
    def free_cache_bytes(self) -> int | None:
        """Unused bytes of the key-value pool; None if each cache allocates its own memory."""
        return None if self._decoder is None else self._decoder.attention.free_bytes

    def forward(self, inputs: Sequence[ForwardInput], extras: Extras = PLAIN) -> ForwardOutput:
        """Append tokens to each sequence and return the last tokens' logits.

        The other inputs change a sequence's logits by rounding at most; with a fixed width not at all.

        Args:
            inputs: The sequences.
            extras: Results and callbacks beyond logits.

        Raises:
            ModelUnsupported: extras, but the passes have a fixed width or the model runs through its
                own forward.
        """
        if extras is not PLAIN:
            self.check_states(extras.taken)
        if self.fixed_width is not None:
            return ForwardOutput([self._fixed(item, self.fixed_width) for item in inputs])
        return self._pass(inputs, extras)

    @property
    def decoder(self) -> Decoder:
        """The decoder that runs the model.

        Raises:
            ModelUnsupported: the model runs through its own forward (`lean` is False).
        """
        if self._decoder is None:
            raise ModelUnsupported(
                f"{type(self.model).__name__} runs through its own forward here, which begins and ends "
                "at no other layer than the first and the last; choose another proposer"
            )
        return self._decoder

    @decoder.setter
    def decoder(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def head_logits(self, hidden: Tensor) -> Tensor:
        """Apply the output head to normed states ``[n, hidden]``: logits ``[n, vocab_size]``.

        Raises:
            ModelUnsupported: the model runs through its own forward.
        """
        return self._fit(self.decoder.logits(hidden))

    def check_states(self, depths: Iterable[int]) -> None:
        """Refuse depths at which this model can't return hidden states.

        Raises:
            ModelUnsupported: the model has fewer layers, passes have a fixed width, or the model runs
                through its own forward.
        """
        name = type(self.model).__name__
        if self._decoder is None or self.fixed_width is not None:
            raise ModelUnsupported(
                f"hidden states of {name} can't be had here: only plain models of the Llama family give "
                "them, and not in reproducible mode; choose another target, or a proposer that needs "
                "none"
            )
        layers = len(self._decoder.weights.layers)
        for depth in depths:
            if not 0 <= depth <= layers:
                raise ModelUnsupported(f"{name} has {layers} layers; there are no states at {depth}")

    @torch.no_grad()
    def adopt(self, weights: Mapping[str, Tensor]) -> None:
        """Copy new values into the model's parameters, by their names. Call it between two passes.

        Caches are not recomputed: later passes read the rows that the old weights wrote.

        Raises:
            ModelUnsupported: passes are captured or weights quantised; both are copies of old values.
        """
        if self.compiled is not None or self.quantised:
            raise ModelUnsupported("captured passes and quantised weights can't be changed in service")
        for name, value in self.model.state_dict().items():
            value.copy_(weights[name])
        if self._decoder is not None:
            self._decoder = self._decoder.renewed()

    def _pass(self, inputs: Sequence[ForwardInput], extras: Extras = PLAIN) -> ForwardOutput:
        """Run the inputs: in one pass of the decoder, or sequence by sequence."""
        self.forwards += len(inputs) if extras.logits else 0
        if self._decoder is None:
            return ForwardOutput([self._fit(own_forward(self.model, item)) for item in inputs])
        whole = extras.logits and extras.midway is None and extras.rider is None
        if self.compiled is not None and whole and not any(item.entered for item in inputs):
            found = self.compiled.passes(inputs, extras.depths, self._fit)
            if found is not None:
                return found
        return self._decoder(inputs, extras, self._fit)

    def _fixed(self, item: ForwardInput, width: int) -> Tensor:
        """Run one input in a pass of exactly ``width`` tokens."""
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
        """Bring logits to the width ``vocab_size``: pad with minus infinity, or cut."""
        missing = self.vocab_size - logits.shape[-1]
        if missing > 0:
            return F.pad(logits, (0, missing), value=-torch.inf)
        return logits[..., : self.vocab_size] if missing else logits
