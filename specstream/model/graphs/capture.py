"""What is captured on a GPU, and how: CUDA graphs of work that always uses the same memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from specstream.checks import first_line
from specstream.model.attention.pooled import Layout, PlacedTokens, PooledAttention
from specstream.model.kv import PooledCache
from specstream.model.numerics import to_device
from specstream.model.tree import Tree

__all__ = [
    "DRAFT",
    "TARGET",
    "Capture",
    "CapturePlan",
    "FixedInputs",
    "batches_up_to",
    "capture_all",
    "capture_on_gpu",
]

K = TypeVar("K", bound=Hashable)
G = TypeVar("G")

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Captures work that always uses the same memory; returns the function that replays it."""

_FEW = 4  # sequences up to which the wide passes are captured, too
_FAILURES = 3  # in a row after which no further capture is tried


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """The passes of a model to capture.

    Attributes:
        widths: Numbers of tokens that a pass reads for each sequence, for all numbers of sequences.
        wide: More of them, for up to four sequences.
        steps: How many tokens a captured chain of draft steps chooses; 0: no chains are captured.
        first: The most tokens that a chain reads for a sequence before it chooses the first one.
    """

    widths: tuple[int, ...]
    wide: tuple[int, ...] = ()
    steps: int = 0
    first: int = 2

    def passes(self, batches: Sequence[int]) -> list[tuple[int, int]]:
        """All (number of sequences, width), the largest first: later ones use their memory again."""
        pairs = [(batch, width) for batch in batches for width in self.widths]
        pairs += [(batch, width) for batch in batches if batch <= _FEW for width in self.wide]
        return sorted(pairs, key=lambda pair: (-pair[0] * pair[1], pair))


# `auto` drafts up to 16 tokens; passes of many sequences seldom have so many for each.
TARGET = CapturePlan((1, 2, 3, 4, 5, 6, 8), (9, 12, 17))
# After a round one or two tokens are new to the draft: the bonus token and the last accepted one.
DRAFT = CapturePlan((1, 2, 3), steps=4)


def batches_up_to(most: int) -> tuple[int, ...]:
    """The numbers of sequences to capture passes for: powers of two that reach ``most``."""
    return tuple(2**n for n in range((most - 1).bit_length() + 1))


class FixedInputs:
    """The inputs of a captured pass of ``batch`` sequences and ``width`` tokens each.

    They lie in memory of their own, which `fill` overwrites before each replay with one transfer.

    Args:
        attention: The pool's attention.
        scratch: A slot that stands in for missing sequences.
        batch: Number of sequences.
        width: Tokens of each.
        longest: Rows that a sequence may have.
        device: The pool's device.
    """

    def __init__(
        self,
        attention: PooledAttention,
        scratch: PooledCache,
        batch: int,
        width: int,
        longest: int,
        device: torch.device,
    ) -> None:
        self.batch, self.width, self.longest = batch, width, longest
        self._trees, self._scratch = attention.trees_with_chains, scratch
        layout = Layout()
        for _ in range(batch):
            layout.append(scratch.slot.start, 0, width, None)
        self._layout = layout  # its sizes are those of every later one
        self.tokens = torch.zeros(batch * width, dtype=torch.int64, device=device)
        self._packed = to_device(layout.packed, device)

    def placed(self) -> PlacedTokens:
        """The places of the tokens, computed from the fixed memory; part of the captured work."""
        parts = self._packed.split_with_sizes(self._layout.sizes)
        return self._layout.placed(parts, self.longest, nodes=self._trees)

    def fill(
        self,
        tokens: Tensor,
        counts: Sequence[int],
        caches: Sequence[PooledCache],
        trees: Sequence[Tree | None],
        more: Sequence[int] = (),
    ) -> Tensor:
        """Write a pass's inputs; return ``more`` on the device, uploaded with them.

        A sequence of fewer than ``width`` tokens repeats one, and ignores what comes of it.
        """
        layout, picks, first = Layout(), list[int](), 0
        for cache, count, tree in zip(caches, counts, trees, strict=True):
            layout.append(cache.slot.start, cache.length, count, tree, self.width)
            picks += [first + min(step, count - 1) for step in range(self.width)]
            first += count
        for _ in range(self.batch - len(counts)):
            layout.append(self._scratch.slot.start, 0, self.width, None)
        picks += [0] * (self.tokens.shape[0] - len(picks))
        packed = to_device([*layout.packed, *picks, *more], tokens.device)
        sizes = self._packed.shape[0], len(picks), len(more)
        places, chosen, rest = packed.split_with_sizes(sizes)
        self._packed.copy_(places)
        torch.index_select(tokens, 0, chosen, out=self.tokens)
        return rest


def capture_all(
    keys: Sequence[K], record: Callable[[K], G], check: Callable[[], None]
) -> tuple[dict[K, G], str]:
    """Record each key's work; return what was recorded, and why something is missing ("" if nothing).

    Work that can't be captured is left out, and none is tried any more when memory runs out or several
    fail in a row: those passes then run eagerly. ``check`` is called before each; what it raises
    propagates.
    """
    made, why, failures = dict[K, G](), "", 0
    for key in keys:
        check()
        try:
            made[key] = record(key)
            failures = 0
        except RuntimeError as error:  # CUDA's errors and torch.OutOfMemoryError are such
            why, failures = why or first_line(error), failures + 1
            if isinstance(error, torch.OutOfMemoryError) or failures >= _FAILURES:
                break
    return made, why


def capture_on_gpu(device: torch.device) -> Capture:
    """Return a `Capture` by CUDA. All graphs share one memory pool, as only one runs at a time."""
    with torch.cuda.device(device):
        pool = torch.cuda.graph_pool_handle()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def capture(work: Callable[[], None]) -> Callable[[], None]:
        with torch.cuda.device(device):
            # Libraries initialise themselves in their first calls, which can't be captured.
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    work()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # Other threads may use the device meanwhile.
            mode = "thread_local"
            with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode=mode):
                work()
        return graph.replay

    return capture
