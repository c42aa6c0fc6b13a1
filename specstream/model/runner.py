"""Runs one model over one or several sequences; the only caller of a forward pass."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from specstream.errors import ModelUnsupported
from specstream.model.decoder import Decoder, Tap
from specstream.model.entry import Entered
from specstream.model.graphs import (
    CapturePlan,
    CompiledPasses,
    Progress,
    compile_passes,
    count_packages,
)
from specstream.model.kv.base import KVCache, RowCache
from specstream.model.kv.transformers import TransformersCache, check_supported
from specstream.model.positions import declared_positions, steady_positions
from specstream.model.products import ROUNDED
from specstream.model.quantised import check_int8
from specstream.model.rider import Rider
from specstream.model.transfer import to_device
from specstream.model.tree import Tree, positions_of

__all__ = ["ForwardInput", "ModelRunner"]

_WARM_UP_S = 1.0
_FIRST_CAPACITY = 256  # rows that a growing cache allocates first


@dataclass(frozen=True, slots=True)
class ForwardInput:
    """Tokens to append to one sequence.

    Attributes:
        token_ids: ``[n]`` int64 on the runner's device, n >= 1.
        cache: The sequence's cache; grows by n rows.
        keep: Of how many last tokens logits are returned; at least as many as the tree has nodes.
        tree: The tree that the last tokens form; None: each token follows the one before it.
        entered: What `ModelRunner.enter` made of the first tokens; None: all begin at the first layer.
    """

    token_ids: Tensor
    cache: KVCache
    keep: int = 1
    tree: Tree | None = None
    entered: Entered | None = None


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
        captured: Which passes `compile` captures.
        int8: The model's matrices are read as eight-bit integers; see `int8_product`.

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
        int8: bool = False,
    ) -> None:
        check_supported(model.config)
        if int8:
            check_int8(model.device)
        reproducible = fixed_width is not None
        self._decoder = Decoder.of(model, reproducible=reproducible, int8=int8) if lean else None
        if int8 and self._decoder is None:
            raise ModelUnsupported(
                f"quantize: only plain models of the Llama family can be quantised here, and "
                f"{type(model).__name__} here is none; leave quantize off"
            )
        self.model: PreTrainedModel = model
        self._int8 = int8
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
        self._captured = captured
        self._compiled: CompiledPasses | None = None
        if captured is not None and self._decoder is None:
            raise ModelUnsupported(
                f"compile: only plain models of the Llama family can be compiled, and "
                f"{type(model).__name__} here is none; leave compile off"
            )

    @property
    def packages(self) -> int:
        """How many packages `compile` reports to its `Progress`."""
        if self._captured is None or self._decoder is None:
            return 0
        return count_packages(self._decoder, self._captured)

    def compile(self, progress: Progress | None = None) -> None:
        """Capture the passes that were asked for; see `compile_passes`. Minutes the first time."""
        if self._captured is not None and self._decoder is not None:
            self._compiled = compile_passes(
                self._decoder,
                self._captured,
                context_length=self.context_length,
                vocab_size=self.vocab_size,
                progress=progress,
            )

    @property
    def compiled(self) -> CompiledPasses | None:
        """The captured passes; None: every pass is eager."""
        return self._compiled

    def chain(self, token_ids: Tensor, cache: KVCache) -> tuple[Tensor, Tensor] | None:
        """Append ``token_ids [n]`` and go on greedily: see `CompiledPasses.chain`.

        None, with nothing done, where no such chain is captured.
        """
        if self._compiled is None:
            return None
        return self._compiled.chain(token_ids, cast(RowCache, cache))

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

    def forward(self, inputs: Sequence[ForwardInput]) -> list[Tensor]:
        """Append tokens to each sequence; its logits, ``[keep, vocab_size]`` each.

        A sequence's logits depend on the other inputs by rounding at most; with a fixed width not at
        all.
        """
        if self.fixed_width is not None:
            return [self._fixed(item, self.fixed_width) for item in inputs]
        return self._pass(inputs)

    def forward_with_rider(self, inputs: Sequence[ForwardInput], rider: Rider) -> list[Tensor]:
        """As `forward`, with rows that travel along; they change logits by rounding at most.

        Raises:
            ModelUnsupported: a model that runs through its own forward.
        """
        self.forwards += len(inputs)
        return self._decode(inputs, rider=rider)

    def forward_watched(
        self, inputs: Sequence[ForwardInput], taps: Mapping[int, Tap]
    ) -> list[Tensor]:
        """As `forward`, eager; ``taps`` take states while the pass runs, see `Decoder.__call__`.

        Check the depths with `check_states`.
        """
        self.forwards += len(inputs)
        return self._decode(inputs, taps)

    def enter(self, inputs: Sequence[ForwardInput], depth: int) -> list[Tensor]:
        """Append tokens to the first ``depth`` layers: their states ``[n, hidden]`` each.

        See `Decoder.enter`: the caller rolls the caches back. Check the depth with `check_states`.
        """
        caches = [cast(RowCache, item.cache) for item in inputs]
        counts = [item.token_ids.shape[0] for item in inputs]
        tokens = torch.cat([item.token_ids for item in inputs])
        states = self.decoder.enter(tokens, caches, counts, depth)
        return list(states.split_with_sizes(counts))

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

    def forward_with_states(
        self, inputs: Sequence[ForwardInput], depths: Sequence[int]
    ) -> list[tuple[Tensor, Tensor]]:
        """As `forward`, with the hidden states of every token of each input.

        Args:
            inputs: See `forward`.
            depths: After how many layers states are taken: 0 are the embeddings, the number of layers
                the input of the final norm. No norm is applied.

        Returns:
            For each input its logits ``[keep, vocab_size]`` and states ``[n, depths, hidden]``.

        Raises:
            ModelUnsupported: passes of a fixed width, or a model that runs through its own forward.
        """
        self.check_states(depths)
        taps: dict[int, list[Tensor]] = {depth: [] for depth in depths}
        logits = self._decode(inputs, taps)
        states = torch.stack([taps[depth][0] for depth in depths], 1)
        counts = [item.token_ids.shape[0] for item in inputs]
        return list(zip(logits, states.split_with_sizes(counts), strict=True))

    def check_states(self, depths: Sequence[int]) -> None:
        """Refuse depths that this model can't give.

        Raises:
            ModelUnsupported: see `forward_with_states`.
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
        if self._compiled is not None or self._int8:
            raise ModelUnsupported(
                "captured passes and quantised weights can't be changed in service"
            )
        for name, value in self.model.state_dict().items():
            value.copy_(weights[name])
        if self._decoder is not None:
            self._decoder = self._decoder.renewed()

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run the shapes of a prompt and of a round once, so that no request pays for the first.

        Of the other numbers of rows that kernels are prepared for, as many as a second allows.
        """
        began, cache = time.perf_counter(), self.new_cache()
        needed = [self.fixed_width] if self.fixed_width else [16, 5, 1]
        useful: list[int] = []
        if self._decoder is not None and self._decoder.packed and not self.fixed_width:
            useful = [width for width in ROUNDED if width <= self.context_length]
        for number, width in enumerate(needed + useful):
            if number >= len(needed) and time.perf_counter() - began > _WARM_UP_S:
                break
            tokens = torch.zeros(width, dtype=torch.int64, device=self.device)
            self._pass([ForwardInput(tokens, cache)])
            cache.rollback_to(0)
        self.forwards = 0

    def _pass(self, inputs: Sequence[ForwardInput]) -> list[Tensor]:
        """As many model calls as the model needs: one, or one per sequence."""
        self.forwards += len(inputs)
        if self._decoder is None:
            return [self._own_forward(item) for item in inputs]
        if self._compiled is not None and not any(item.tree or item.entered for item in inputs):
            found = self._compiled(
                [item.token_ids for item in inputs],
                [cast(RowCache, item.cache) for item in inputs],
                [item.keep for item in inputs],
            )
            if found is not None:
                return [self._fit(logits) for logits in found]
        return self._decode(inputs)

    def _decode(
        self,
        inputs: Sequence[ForwardInput],
        taps: Mapping[int, Tap] | None = None,
        rider: Rider | None = None,
    ) -> list[Tensor]:
        decoder = self.decoder
        caches = [cast(RowCache, item.cache) for item in inputs]
        counts = [item.token_ids.shape[0] for item in inputs]
        keeps = [item.keep for item in inputs]
        trees = [item.tree for item in inputs]
        tokens = inputs[0].token_ids
        if len(inputs) > 1:
            tokens = torch.cat([item.token_ids for item in inputs])
        entered = [item.entered for item in inputs]
        if taps and min(taps) < max((one.depth for one in entered if one is not None), default=0):
            entered = [None] * len(inputs)  # states below that depth are wanted: compute them again
        hidden = decoder(tokens, caches, counts, keeps, trees, taps, entered, rider)
        logits = self._fit(decoder.logits(hidden))
        return [logits] if len(keeps) == 1 else list(logits.split_with_sizes(keeps))

    def _own_forward(self, item: ForwardInput) -> Tensor:
        cache = cast(TransformersCache, item.cache)
        logits: Tensor = self.model(
            input_ids=item.token_ids.unsqueeze(0),
            past_key_values=cache.transformers,
            use_cache=True,
            logits_to_keep=item.keep,
            **self._tree_inputs(item),
        ).logits[0, -item.keep :]
        return self._fit(logits)

    def _tree_inputs(self, item: ForwardInput) -> dict[str, Tensor]:
        """A tree's positions and mask as transformers takes them: ``[1, n]`` and ``[1, 1, n, rows]``."""
        if item.tree is None:
            return {}
        before, count = item.cache.length, item.token_ids.shape[0]
        seen = item.tree.seen_behind(before, count, before + count, self.device)
        hidden = torch.finfo(self.dtype).min
        mask = torch.zeros(seen.shape, dtype=self.dtype, device=self.device)
        positions = to_device(positions_of(before, count, item.tree), self.device)
        return {
            "position_ids": positions.unsqueeze(0),
            "attention_mask": mask.masked_fill_(~seen, hidden)[None, None],
        }

    def _fixed(self, item: ForwardInput, width: int) -> Tensor:
        tokens, count, cache = item.token_ids, item.token_ids.shape[0], item.cache
        if item.tree is not None:
            raise ValueError("a pass of fixed width takes chains only")
        before, junk = cache.length, width - count
        if junk < 0:
            raise ValueError(f"a pass of fixed width {width} can't take {count} tokens")
        tokens = torch.cat([tokens, tokens.new_zeros(junk)])
        (logits,) = self._pass([ForwardInput(tokens, cache, keep=width)])
        cache.rollback_to(before + count)
        return logits[count - item.keep : count]

    def _fit(self, logits: Tensor) -> Tensor:
        missing = self.vocab_size - logits.shape[-1]
        if missing > 0:
            return F.pad(logits, (0, missing), value=-torch.inf)
        return logits[..., : self.vocab_size] if missing else logits
