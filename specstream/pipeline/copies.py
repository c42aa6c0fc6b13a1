"""Copies of a stage's state, to go back to when a drafted phrase is revoked."""

from __future__ import annotations

from collections import deque
from copy import deepcopy
from typing import Generic, TypeVar

from specstream.types import Revoke

__all__ = ["Copies"]

_KEPT = 8  # copies: more than drafted phrases can be outstanding

T = TypeVar("T")


class Copies(Generic[T]):
    """Copies of a stage's state from before each of the latest phrases; none unless ``enabled``."""

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self._kept: deque[tuple[int, T]] = deque(maxlen=_KEPT)

    def keep(self, start: int, state: T) -> None:
        """Copy the state before a phrase that begins at the offset ``start``."""
        if self.enabled:
            self._kept.append((start, deepcopy(state)))

    def back(self, revoke: Revoke, state: T) -> T:
        """The state from before the drafted phrases that are revoked; ``state`` if there were none."""
        while self._kept and self._kept[-1][0] >= revoke.from_char:
            _, kept = self._kept.pop()
            state = kept if revoke.drafted else state
        return state
