"""Rows that travel in a pass of the target from one of its layers on, and leave no trace in it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from specstream.model.attention.base import AttentionPlan, Batch
from specstream.model.layers import Layer

__all__ = ["Rider"]


class Rider(Protocol):
    """Adds rows behind those of the pass; made for one pass, on the thread that runs it.

    The pass's own rows must come to the same results as without it, but for rounding.

    Attributes:
        depth: After how many layers its rows get on.
    """

    depth: int

    def prepare(self, batch: Batch) -> None:
        """The pass is about to be planned: reserve cache rows here, not later."""
        ...

    def board(
        self, x: Tensor, cos: Tensor, sin: Tensor, plan: AttentionPlan
    ) -> tuple[Tensor, Tensor, Tensor, AttentionPlan]:
        """The states ``[N, hidden]`` at ``depth``, angles and attention, with its rows behind."""
        ...

    def layer(self, index: int) -> Layer:
        """What computes layer ``index`` of all rows."""
        ...

    def leave(self, x: Tensor) -> Tensor:
        """Take its rows off the last layer's states; the pass's own."""
        ...
