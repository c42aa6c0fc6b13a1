"""The key-value cache of one sequence, as every forward pass and the engine see it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise

__all__ = ["KVCache", "RowCache"]


class KVCache(ABC):
    """Keys and values of one sequence, for every layer of one model.

    ``length`` rows are valid. A pass appends rows; `rollback_to` takes rows back in O(1).
    """

    @property
    @abstractmethod
    def length(self) -> int:
        """Valid rows: those that every layer has."""

    @abstractmethod
    def rollback_to(self, length: int) -> None:
        """Keep the first ``length`` rows. Absolute, so doing it twice changes nothing.

        Raises:
            ValueError: ``length`` is negative or exceeds the valid rows.
        """

    def keep_path(self, start: int, path: Sequence[int]) -> None:
        """Keep, of the rows of a token tree, those of one path, and move them together.

        Afterwards ``length`` is ``start + len(path)``.

        Args:
            start: Row of the tree's first node.
            path: Increasing node numbers; node j has row ``start + j``.

        Raises:
            ValueError: a row that is not valid, or nodes out of order.
        """
        self._check(start + 1 + max(path, default=-1))
        if any(later <= earlier for earlier, later in pairwise(path)):
            raise ValueError(f"the nodes of a path come in order: {tuple(path)}")
        if list(path) != list(range(len(path))):
            self._move_rows(start, path)
        self.rollback_to(start + len(path))

    @abstractmethod
    def _move_rows(self, start: int, path: Sequence[int]) -> None:
        """Copy row ``start + path[i]`` of every layer to ``start + i``."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Allocated memory, in bytes."""

    def _check(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError(f"can't roll back to {length}: {self.length} rows are valid")


class RowCache(KVCache):
    """A cache for `Decoder`: a pass reserves rows, writes them, then declares them valid.

    Attributes:
        fixed_capacity: Rows that every pass reads, valid or not; None: a pass reads the valid rows.
    """

    fixed_capacity: int | None = None

    def __init__(self) -> None:
        self._length = 0

    @property
    def length(self) -> int:
        """Valid rows. An interrupted pass has added none."""
        return self._length

    def rollback_to(self, length: int) -> None:
        """Keep the first ``length`` rows; see `KVCache.rollback_to`."""
        self._check(length)
        self._length = length

    @abstractmethod
    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` rows in total; valid rows keep their values."""

    def append_to(self, length: int) -> None:
        """The rows below ``length`` have been written and are valid. Absolute, like `rollback_to`."""
        self._length = length
