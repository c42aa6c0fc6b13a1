"""What one pass of a model reads, what is asked of it besides logits, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specstream.model.entry import Entered
from specstream.model.kv.base import KVCache
from specstream.model.rider import Rider
from specstream.model.tree import Tree

__all__ = ["PLAIN", "Extras", "ForwardInput", "ForwardOutput", "Midway", "Taps"]


@dataclass(frozen=True, slots=True)
class ForwardInput:
    """Tokens to append to one sequence.

    Attributes:
        token_ids: ``[n]`` int64 on the runner's device, n >= 1.
        cache: The sequence's cache; grows by n rows.
        keep: Of how many last tokens logits are returned; at least as many as the tree has nodes.
        tree: The tree that the last tokens form; None: each token follows the one before it.
        entered: What a pass without logits made of the first tokens; None: all begin at the first layer.
    """

    token_ids: Tensor
    cache: KVCache
    keep: int = 1
    tree: Tree | None = None
    entered: Entered | None = None


@dataclass(frozen=True, slots=True)
class Midway:
    """A call in the middle of a pass, which goes on when it returns.

    Attributes:
        depth: After how many layers.
        call: Gets the states ``[n, hidden]`` of each input's tokens, copies of their own.
    """

    depth: int
    call: Callable[[Sequence[Tensor]], None]


@dataclass(frozen=True, slots=True)
class Extras:
    """What is asked of a pass besides logits. All of it needs a model that runs through `Decoder`.

    Attributes:
        depths: After how many layers hidden states are taken: 0 are the embeddings, the number of
            layers the input of the final norm. No norm is applied.
        logits: False ends the pass after the deepest of ``depths``. The other layers then have no rows
            of its tokens: whoever asks for that rolls the caches back before any other pass, which may
            go on from the states (`Entered`).
        midway: A call in the middle.
        rider: Rows that travel along; they change logits by rounding at most.
    """

    depths: Sequence[int] = ()
    logits: bool = True
    midway: Midway | None = None
    rider: Rider | None = None

    def __post_init__(self) -> None:
        if not (self.logits or self.depths):
            raise ValueError("a pass without logits gives states: say after how many layers")

    @property
    def taken(self) -> frozenset[int]:
        """All depths whose states are taken."""
        return frozenset(self.depths) | ({self.midway.depth} if self.midway else set())


PLAIN = Extras()
"""Logits alone."""


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """What a pass gives, for each of its inputs.

    Attributes:
        logits: ``[keep, vocab_size]`` each; empty where none were asked for.
        states: ``[n, depths, hidden]`` each, in the order of `Extras.depths`; empty without depths. Of
            native passes without logits they are float32.
    """

    logits: list[Tensor] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)


class Taps:
    """Takes hidden states while a pass runs."""

    def __init__(self, extras: Extras, counts: Sequence[int]) -> None:
        self.depths = extras.taken
        self._extras, self._counts = extras, list(counts)
        self._found: dict[int, Tensor] = {}

    def take(self, depth: int, states: Tensor) -> None:
        """``[N, hidden]`` of all tokens after ``depth`` layers, which nobody writes to any more."""
        self._found[depth] = states
        midway = self._extras.midway
        if midway is not None and midway.depth == depth:
            midway.call(states.split_with_sizes(self._counts))

    def pauses(self, first: int, end: int) -> list[int]:
        """Where a pass of layers ``first`` to ``end`` stops: at a call midway, and at ``end``."""
        midway = self._extras.midway
        if midway is None or not first <= midway.depth < end:
            return [end]
        return [midway.depth, end]

    @property
    def states(self) -> list[Tensor]:
        """See `ForwardOutput.states`."""
        if not self._extras.depths:
            return []
        each = torch.stack([self._found[depth] for depth in self._extras.depths], 1)
        return list(each.split_with_sizes(self._counts))
