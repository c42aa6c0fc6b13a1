"""Extra rows that follow a target pass through its top layers, and that the pass itself doesn't see."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from specstream.model.attention.base import Batch

__all__ = ["Rider"]


class Rider(Protocol):
    """Rows computed from a pass's hidden states. Made for one pass, called on the thread that runs it.

    They attend to the rows that the pass has written into the caches. The pass runs without them, so
    its logits have the same bits with and without a rider.

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
