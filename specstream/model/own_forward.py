"""A model that runs through its own forward: its passes, its cache, the positions it supports."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from specstream.errors import ModelUnsupported
from specstream.model.forward import ForwardInput
from specstream.model.kv import FIRST_CAPACITY, KVCache
from specstream.model.numerics import to_device
from specstream.model.tree import Tree, positions_of

__all__ = [
    "TransformersCache",
    "cache_argument",
    "check_supported",
    "declared_positions",
    "own_forward",
    "steady_positions",
]

_ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}


def check_supported(config: PretrainedConfig) -> None:
    """Refuse a model that keeps other state than keys and values per position.

    Sliding-window and chunked layers are accepted: all their rows are kept, and the mask hides old ones.

    Raises:
        ModelUnsupported: recurrent, convolutional, hybrid or indexed layers, whose state can't be
            rolled back by position, layers that share keys and values, or an encoder-decoder.
    """
    text = config.get_text_config()
    if getattr(config, "is_encoder_decoder", False):
        raise ModelUnsupported(
            f"{config.model_type}: encoder-decoder models are not supported; choose a decoder-only model"
        )
    if config.model_type == "moshi":
        raise ModelUnsupported("moshi: it reads audio along with text, which is not supported")
    # Gemma 3n and 4 give the number; other configs say of each layer what it does.
    shared = getattr(text, "num_kv_shared_layers", 0)
    shared = shared or list(getattr(text, "kv_sharing_modes", None) or ()).count("reuse")
    if shared:
        raise ModelUnsupported(
            f"{config.model_type}: {shared} of its layers attend to the keys and values of others, "
            "which is not supported; choose a model whose layers all have their own"
        )
    # transformers' own cache for the config shows which state each layer keeps, for any architecture.
    probe = DynamicCache(config=text)
    kinds = {type(layer).__name__ for layer in probe.layers}
    odd = {kind for kind in kinds if kind not in {"DynamicLayer", "DynamicSlidingWindowLayer"}}
    declared = set(getattr(text, "layer_types", None) or ()) - _ATTENTION
    if odd or declared:
        what = ", ".join(sorted(declared or odd))
        raise ModelUnsupported(
            f"{config.model_type} keeps state that can't be rolled back by position ({what}); "
            "choose a model whose layers are all attention"
        )


class _Layer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer's keys and values, ``[batch, kv_heads, capacity, head_dim]``, written in place.

    With a ``fixed`` capacity every pass reads the whole buffer (the mask hides unused rows), so that
    all passes have the same shapes and with them the same order of summation.
    """

    is_sliding = False
    is_compileable = False

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, fixed: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.length = 0
        self._fixed = fixed

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate on first use: shapes, dtype and device are known then."""
        batch, heads, needed, _ = key_states.shape
        capacity = self._fixed or max(FIRST_CAPACITY, needed)
        # Zeros, not empty: a hidden row still takes part in sums, and 0 times NaN is NaN.
        self.keys = key_states.new_zeros(batch, heads, capacity, key_states.shape[-1])
        self.values = value_states.new_zeros(batch, heads, capacity, value_states.shape[-1])
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append rows; return the rows to attend to: those in use, or the fixed capacity."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[-2]
        if end > self.keys.shape[-2]:
            self._grow(end)
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        shown = self._fixed or end
        return self.keys[:, :, :shown], self.values[:, :, :shown]

    def _grow(self, needed: int) -> None:
        if self._fixed is not None:
            raise ValueError(f"a cache of {self._fixed} rows can't hold {needed}")
        capacity = max(needed, 2 * self.keys.shape[-2])  # doubling: copying stays amortised O(1)
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_empty(*old.shape[:2], capacity, old.shape[-1])
            new[:, :, : self.length] = old[:, :, : self.length]
            setattr(self, name, new)

    def copy_rows(self, other: _Layer, rows: int) -> None:
        """Take over the first ``rows`` rows of another sequence's layer; this one is empty."""
        self.update(other.keys[:, :, :rows], other.values[:, :, :rows])

    def move_rows(self, start: int, path: Sequence[int]) -> None:
        """Copy row ``start + path[i]`` to ``start + i``."""
        rows = to_device([start + node for node in path], self.keys.device)
        for buffer in (self.keys, self.values):
            buffer[:, :, start : start + len(path)] = buffer.index_select(2, rows)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of key rows that the mask covers, and the offset of the first."""
        return self._fixed or self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Rows in use."""
        return self.length

    def get_max_length(self) -> int:
        """Return -1, transformers' value for a cache without a maximum length."""
        return -1


class TransformersCache(KVCache):
    """Wraps ``transformers``, the cache object that the model's own forward takes and appends to.

    With ``fixed_capacity`` that many rows are allocated on first use and every pass reads all of them.
    """

    def __init__(self, config: PretrainedConfig, fixed_capacity: int | None = None) -> None:
        count = config.get_text_config().num_hidden_layers
        self._layers = [_Layer(fixed_capacity) for _ in range(count)]
        self.transformers = Cache(layers=list(self._layers))

    @property
    def length(self) -> int:
        """Number of valid rows: the least of any layer, as an interrupted forward wrote to some only."""
        return min(layer.length for layer in self._layers)

    def rollback_to(self, length: int) -> None:
        """Keep the first ``length`` rows; see `KVCache.rollback_to`."""
        self._check(length)
        for layer in self._layers:
            layer.length = length

    def _copy_rows(self, other: TransformersCache, rows: int) -> None:
        for layer, given in zip(self._layers, other._layers, strict=True):
            layer.copy_rows(given, rows)

    def _move_rows(self, start: int, path: Sequence[int]) -> None:
        for layer in self._layers:
            layer.move_rows(start, path)

    @property
    def nbytes(self) -> int:
        """Allocated memory, in bytes."""
        ready = [layer for layer in self._layers if layer.is_initialized]
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in ready)


def cache_argument(model: PreTrainedModel) -> str:
    """Return the name of the argument by which a model's forward takes its cache.

    ``past_key_values``, or from transformers 5.24 on ``cache``; a model class written for an older
    version may know the older name only.
    """
    return _declared(type(model).forward)


@cache
def _declared(forward: Callable[..., object]) -> str:
    taken = inspect.signature(forward).parameters
    return "cache" if "cache" in taken and "past_key_values" not in taken else "past_key_values"


def own_forward(model: PreTrainedModel, item: ForwardInput) -> Tensor:
    """Append an input's tokens to its cache; return logits ``[keep, V]`` of the model's own width."""
    rows, more = cast(TransformersCache, item.cache), dict[str, object]()
    if item.tree is not None:
        more |= _tree_inputs(model, rows.length, item.token_ids.shape[0], item.tree)
    more[cache_argument(model)] = rows.transformers
    logits: Tensor = model(
        input_ids=item.token_ids.unsqueeze(0), use_cache=True, logits_to_keep=item.keep, **more
    ).logits
    return logits[0, -item.keep :]


def _tree_inputs(model: PreTrainedModel, before: int, count: int, tree: Tree) -> dict[str, Tensor]:
    """A tree's positions ``[1, n]`` and additive mask ``[1, 1, n, rows]``, in transformers' form."""
    seen = tree.seen_behind(before, count, before + count, model.device)
    mask = torch.zeros(seen.shape, dtype=model.dtype, device=model.device)
    positions = to_device(positions_of(before, count, tree), model.device)
    return {
        "position_ids": positions.unsqueeze(0),
        "attention_mask": mask.masked_fill_(~seen, torch.finfo(model.dtype).min)[None, None],
    }


_UNBOUNDED = 2**31


def declared_positions(config: PretrainedConfig) -> int:
    """Return the number of positions that the config declares; practically unbounded if none."""
    text = config.get_text_config()
    return int(getattr(text, "max_position_embeddings", 0) or _UNBOUNDED)


def steady_positions(config: PretrainedConfig) -> int:
    """Return the number of positions, from 0, whose rotary factors are the same in every pass.

    transformers chooses the "longrope" factors by the highest position of a *pass*. Past the original
    length it rotates all rows of the pass by other factors than the rows in the cache, so the logits
    would depend on how tokens are divided into passes. ("dynamic" factors change past the declared
    length, where the context ends anyway.)
    """
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, Mapping))]
    lengths = [
        int(kind.get("original_max_position_embeddings") or _UNBOUNDED)
        for kind in kinds
        if kind.get("rope_type") == "longrope"
    ]
    return min(lengths, default=_UNBOUNDED)
