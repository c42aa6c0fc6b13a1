"""The interface of a key-value cache of one sequence, for forward passes and the engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Self

__all__ = ["FIRST_CAPACITY", "KVCache", "RowCache", "common_prefix"]

FIRST_CAPACITY = 256
"""Rows that a growing cache allocates first."""


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the longest common prefix: how many rows of a text's cache fit another text."""
    same, most = 0, min(len(a), len(b))
    while same < most:  # by halves: lists are compared at once
        middle = (same + most + 1) // 2
        if list(a[same:middle]) == list(b[same:middle]):
            same = middle
        else:
            most = middle - 1
    return same


class KVCache(ABC):
    """Keys and values of one sequence, for every layer of one model.

    ``length`` rows are valid. A pass appends rows; `rollback_to` discards the last ones in O(1).
    """

    @property
    @abstractmethod
    def length(self) -> int:
        """Number of valid rows: those that every layer has."""

    @abstractmethod
    def rollback_to(self, length: int) -> None:
        """Keep the first ``length`` rows. The number is absolute, so a second call changes nothing.

        Raises:
            ValueError: ``length`` is negative or exceeds the valid rows.
        """

    def keep_path(self, start: int, path: Sequence[int]) -> None:
        """Of a token tree's rows keep those of one path, moved together; discard the others.

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

    def begin_as(self, other: Self, rows: int) -> None:
        """Become a copy of the first ``rows`` rows of another sequence's cache of the same model.

        Raises:
            ValueError: the other cache has fewer valid rows.
            torch.OutOfMemoryError: no memory for the copy; this cache is then empty.
        """
        other._check(rows)
        self.rollback_to(0)
        if rows:
            self._copy_rows(other, rows)

    @abstractmethod
    def _copy_rows(self, other: Self, rows: int) -> None:
        """Copy the first rows of every layer; this cache is empty."""

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
        """Number of valid rows. A pass that was interrupted has added none."""
        return self._length

    def rollback_to(self, length: int) -> None:
        """Keep the first ``length`` rows; see `KVCache.rollback_to`."""
        self._check(length)
        self._length = length

    @abstractmethod
    def reserve(self, rows: int) -> None:
        """Allocate memory for ``rows`` rows in total; valid rows keep their values."""

    def append_to(self, length: int) -> None:
        """Declare the first ``length`` rows written and valid. Absolute, like `rollback_to`."""
        self._length = length
