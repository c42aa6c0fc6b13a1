"""The inputs and results of a pass, and passes that go on from an early exit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

import torch
from torch import Tensor

from specstream.model.attention.base import Batch
from specstream.model.kv import KVCache, RowCache
from specstream.model.tree import Tree

__all__ = [
    "PLAIN",
    "Entered",
    "Extras",
    "ForwardInput",
    "ForwardOutput",
    "Midway",
    "Rider",
    "Taps",
    "common_depth",
    "entered_states",
]


@dataclass(frozen=True, slots=True)
class Entered:
    """Hidden states of an input's first tokens, which a pass without logits computed.

    That pass (`Extras.logits`) left the tokens' keys and values of the first layers in the sequence's
    cache, behind its valid rows. No other pass over the sequence may run before these states are used.

    Attributes:
        at: Length of the cache before that pass: the row of the first of these tokens.
        depth: Number of layers that have been computed, at least 1.
        states: ``[m, hidden]`` after those layers, m >= 1.
    """

    at: int
    depth: int
    states: Tensor

    def fits(self, length: int, count: int) -> bool:
        """Whether these tokens can be the first of ``count`` tokens behind ``length`` valid rows."""
        return self.at == length and 0 < self.states.shape[0] <= count


@dataclass(frozen=True, slots=True)
class ForwardInput:
    """Tokens to append to one sequence.

    Attributes:
        token_ids: ``[n]`` int64 on the runner's device, n >= 1.
        cache: The sequence's cache; grows by n rows.
        keep: How many last tokens to return logits of; at least as many as the tree has nodes.
        tree: The tree that the last tokens form; None: each token follows the one before it.
        entered: States of the first tokens from a pass without logits; None: there are none, and all
            tokens start at the first layer.
    """

    token_ids: Tensor
    cache: KVCache
    keep: int = 1
    tree: Tree | None = None
    entered: Entered | None = None


@dataclass(frozen=True, slots=True)
class Midway:
    """A callback in the middle of a pass; the pass continues when it returns.

    Attributes:
        depth: After how many layers to call.
        call: Receives a copy of the states ``[n, hidden]`` of each input's tokens.
    """

    depth: int
    call: Callable[[Sequence[Tensor]], None]


class Rider(Protocol):
    """Extra rows that follow a pass through its top layers, computed from the pass's hidden states.

    Made for one pass, called on the thread that runs it. They attend to the rows that the pass has
    written into the caches. The pass runs without them, so its logits have the same bits with and
    without a rider.

    Attributes:
        depth: After how many layers the pass's states are taken.
    """

    depth: int

    def prepare(self, batch: Batch) -> None:
        """Called before the pass is planned: the last moment to reserve cache rows."""
        ...

    def run(self, states: Tensor) -> None:
        """Called after the pass, with all its tokens' states ``[N, hidden]`` at `depth`."""
        ...


@dataclass(frozen=True, slots=True)
class Extras:
    """Options of a pass beyond plain logits. All of them need a model that runs through `Decoder`.

    Attributes:
        depths: After how many layers to take hidden states: 0 gives the embeddings, the number of
            layers the input of the final norm. No norm is applied.
        logits: False ends the pass after the deepest of ``depths``. The other layers then have no cache
            rows of its tokens, so the caller must roll the caches back before any other pass. That pass
            may continue from the states (`Entered`).
        midway: A callback in the middle of the pass.
        rider: Extra rows that follow the pass's own rows; they don't change the results.
    """

    depths: Sequence[int] = ()
    logits: bool = True
    midway: Midway | None = None
    rider: Rider | None = None

    def __post_init__(self) -> None:
        if not (self.logits or self.depths):
            raise ValueError("a pass without logits needs depths to take hidden states at")

    @property
    def taken(self) -> frozenset[int]:
        """All depths at which states are taken, the callback's and the rider's included."""
        return frozenset((*self.depths, *(one.depth for one in (self.midway, self.rider) if one)))


PLAIN = Extras()
"""A pass that returns logits and nothing else."""


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """The results of a pass, one entry per input.

    Attributes:
        logits: ``[keep, vocab_size]`` each; empty if `Extras.logits` is False.
        states: ``[n, depths, hidden]`` each, in the order of `Extras.depths`; empty without depths. In
            the model's dtype, except for native passes without logits: these give float32.
    """

    logits: list[Tensor] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)


class Taps:
    """Collects hidden states while a pass runs, and calls `Midway.call` at its depth."""

    def __init__(self, extras: Extras, counts: Sequence[int]) -> None:
        self.depths = extras.taken
        self._extras, self._counts = extras, list(counts)
        self._found: dict[int, Tensor] = {}

    def take(self, depth: int, states: Tensor) -> None:
        """Receive all tokens' states ``[N, hidden]`` after ``depth`` layers; they are final."""
        self._found[depth] = states
        midway = self._extras.midway
        if midway is not None and midway.depth == depth:
            midway.call(states.split_with_sizes(self._counts))

    def pauses(self, first: int, end: int) -> list[int]:
        """Depths at which layers ``first`` to ``end`` have to pause: the callback's, and ``end``."""
        midway = self._extras.midway
        if midway is None or not first <= midway.depth < end:
            return [end]
        return [midway.depth, end]

    def at(self, depth: int) -> Tensor:
        """Return all tokens' states ``[N, hidden]`` at a depth, after the pass."""
        return self._found[depth]

    @property
    def states(self) -> list[Tensor]:
        """See `ForwardOutput.states`."""
        return list(self.joint.split_with_sizes(self._counts)) if self._extras.depths else []

    @property
    def joint(self) -> Tensor:
        """All tokens' states ``[N, depths, hidden]`` at `Extras.depths`; there must be a depth."""
        return torch.stack([self._found[depth] for depth in self._extras.depths], 1)


def common_depth(inputs: Sequence[ForwardInput]) -> int:
    """Return the depth to which inputs are entered; 0 if none is.

    Raises:
        ValueError: the depths differ.
    """
    depths = {item.entered.depth for item in inputs if item.entered is not None}
    if len(depths) > 1:
        raise ValueError(f"the inputs of a pass must be entered to one depth, not {sorted(depths)}")
    return depths.pop() if depths else 0


def entered_states(
    inputs: Sequence[ForwardInput],
    depth: int,
    enter: Callable[[Sequence[ForwardInput], Extras], ForwardOutput],
) -> Tensor:
    """Return all tokens' states ``[N, hidden]`` at ``depth``, the common one of the inputs.

    Tokens without states yet are run through the first layers here, by ``enter``, the decoder. The
    lengths of the caches are the same afterwards.
    """
    caches = [cast(RowCache, item.cache) for item in inputs]
    lengths = [cache.length for cache in caches]
    known = [0 if item.entered is None else item.entered.states.shape[0] for item in inputs]
    fresh = dict[int, ForwardInput]()
    for number, (item, count) in enumerate(zip(inputs, known, strict=True)):
        ids = item.token_ids[count:]
        if ids.shape[0]:
            fresh[number] = ForwardInput(ids, item.cache, ids.shape[0], item.tree)
    found = dict[int, Tensor]()
    try:
        for cache, length, count in zip(caches, lengths, known, strict=True):
            cache.append_to(length + count)
        if fresh:
            made = enter(list(fresh.values()), Extras((depth,), logits=False)).states
            found = dict(zip(fresh, made, strict=True))
    finally:
        for cache, length in zip(caches, lengths, strict=True):
            cache.rollback_to(length)
    joined = list[Tensor]()
    for number, item in enumerate(inputs):
        joined += [] if item.entered is None else [item.entered.states]
        joined += [found[number][:, 0]] if number in found else []
    return torch.cat(joined)  # never a view of `entered`: the layers overwrite their input
