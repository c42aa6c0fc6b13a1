"""Extra rows that join a target pass at one of its layers and leave before its final norm."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from specstream.model.attention.base import AttentionPlan, Batch
from specstream.model.layers import Layer

__all__ = ["Rider"]


class Rider(Protocol):
    """Adds rows behind those of a pass. Made for one pass, and called on the thread that runs the pass.

    The results of the pass's own rows may change by rounding only.

    Attributes:
        depth: After how many layers the rider's rows join.
    """

    depth: int

    def prepare(self, batch: Batch) -> None:
        """Called before the pass is planned: the last moment to reserve cache rows."""
        ...

    def board(
        self, x: Tensor, cos: Tensor, sin: Tensor, plan: AttentionPlan
    ) -> tuple[Tensor, Tensor, Tensor, AttentionPlan]:
        """Append the rider's rows to the pass's states ``[N, hidden]``, angles and attention plan."""
        ...

    def layer(self, index: int) -> Layer:
        """Return the layer that computes all rows in place of the model's layer ``index``."""
        ...

    def leave(self, x: Tensor) -> Tensor:
        """Take the rider's rows off the last layer's states; return the pass's own rows."""
        ...
