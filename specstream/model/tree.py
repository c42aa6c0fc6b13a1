"""The shape of a token tree that one pass verifies: parents, depths and masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Tree", "positions_of"]


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree of the last K tokens of a pass: each follows its parent instead of the token before it.

    With contiguous attention a pass may also continue a tree whose first nodes are in the cache: K is
    then larger than the number of the pass's tokens.

    Attributes:
        parents: Each node's parent; -1 is the token before the tree. Parents precede their children.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        if not all(-1 <= parent < node for node, parent in enumerate(self.parents)):
            raise ValueError(
                f"every parent must come before its child, and -1 is the root: {self.parents}"
            )

    @staticmethod
    def of(parents: Sequence[int]) -> Tree | None:
        """The tree of these parents; None for a chain, which needs no mask of its own."""
        if all(parent == node - 1 for node, parent in enumerate(parents)):
            return None
        return Tree(tuple(parents))

    @property
    def depths(self) -> list[int]:
        """For each node the number of its ancestors in the tree."""
        found: list[int] = []
        for parent in self.parents:
            found.append(found[parent] + 1 if parent >= 0 else 0)
        return found

    @property
    def bits(self) -> list[int]:
        """For each node a signed 64-bit number whose bit j is set if it sees node j; K is at most 64."""
        found: list[int] = []
        for node, parent in enumerate(self.parents):
            found.append((found[parent] if parent >= 0 else 0) | 1 << node)
        return [bits - (bits >> 63 << 64) for bits in found]

    @property
    def paths(self) -> list[tuple[int, ...]]:
        """For each node its ancestors from the root down, and itself."""
        found: list[tuple[int, ...]] = []
        for node, parent in enumerate(self.parents):
            found.append((*(found[parent] if parent >= 0 else ()), node))
        return found

    def seen_bytes(self, before: int, count: int) -> bytes:
        """As `seen_behind`, as bytes of shape ``[count, max(count, K)]``.

        The columns of earlier rows, which all tokens see, are left out.
        """
        size = len(self.parents)
        if before + count < size:
            raise ValueError(f"a tree of {size} tokens needs as many rows, not {before + count}")
        chain = max(count - size, 0)
        rows = [b"\1" * (i + 1) + bytes(chain + size - i - 1) for i in range(chain)]
        nodes: list[bytearray] = []
        for node, parent in enumerate(self.parents):
            seen = bytearray(nodes[parent] if parent >= 0 else size)
            seen[node] = 1
            nodes.append(seen)
        rows += [b"\1" * chain + seen for seen in nodes]
        return b"".join(rows[-count:])

    def seen_behind(self, before: int, count: int, width: int, device: torch.device) -> Tensor:
        """Return which rows the last ``count`` tokens of a pass attend to: ``[count, width]`` bool.

        Args:
            before: Rows of the cache before those tokens, visible to all of them. If the tree has more
                than ``count`` nodes, its first nodes are the last of these rows, and these are visible
                to their descendants only.
            count: Number of queries; those before the tree form a chain.
            width: Number of columns; those from ``before + count`` on are hidden.
            device: Device of the mask.
        """
        own = torch.frombuffer(bytearray(self.seen_bytes(before, count)), dtype=torch.bool)
        own = own.view(count, -1)
        end = before + count
        seen = F.pad(own, (end - own.shape[1], width - end), value=False)
        seen[:, : end - own.shape[1]] = True
        return seen.to(device, non_blocking=True)


def positions_of(before: int, count: int, tree: Tree | None) -> list[int]:
    """Return the positions of ``count`` tokens behind ``before`` rows; a node's depends on its depth."""
    if tree is None:
        return list(range(before, before + count))
    chain = count - len(tree.parents)
    first = before + chain
    return [*range(before, first), *(first + depth for depth in tree.depths[-count:])]
