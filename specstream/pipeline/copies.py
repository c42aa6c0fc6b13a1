"""Copies of what a stage knows, to go back to when a drafted phrase is revoked."""

from __future__ import annotations

from collections import deque
from copy import deepcopy
from typing import Generic, TypeVar

from specstream.types import Revoke

__all__ = ["Copies"]

_KEPT = 8  # more than there are drafted phrases outstanding

T = TypeVar("T")


class Copies(Generic[T]):
    """What a stage knew before each of the latest phrases; nothing unless ``enabled``."""

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self._kept: deque[tuple[int, T]] = deque(maxlen=_KEPT)

    def keep(self, start: int, state: T) -> None:
        """A phrase that begins at ``start`` follows."""
        if self.enabled:
            self._kept.append((start, deepcopy(state)))

    def back(self, revoke: Revoke, state: T) -> T:
        """The state from before the phrases that are revoked; ``state`` if there were none."""
        while self._kept and self._kept[-1][0] >= revoke.from_char:
            _, kept = self._kept.pop()
            state = kept if revoke.drafted else state
        return state
