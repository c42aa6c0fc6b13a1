"""Passes recorded as CUDA graphs: one launch for all kernels of a pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specstream.model.compiled.chain import StaticChain
from specstream.model.compiled.static import StaticPass, by_matrix
from specstream.model.compiled.widths import CapturePlan, Widths
from specstream.model.slab import SlabCache
from specstream.model.weights import DecoderWeights, RotaryTable

__all__ = ["Capture", "GraphedPasses", "capture_on_gpu"]

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Runs work that always touches the same memory, and returns what does it again."""

_FIRST_SHOWN = 512  # rows; a sequence that grows beyond moves to graphs that show twice as many


@dataclass(slots=True)
class _Graph:
    """One recorded pass and the memory that it reads and writes."""

    tokens: Tensor
    at: Tensor
    results: tuple[Tensor, ...] = ()
    replay: Callable[[], None] = lambda: None


class GraphedPasses:
    """Passes of 1 to ``max(widths)`` tokens of one sequence, recorded; see `__call__` and `chain`.

    A graph reads and writes fixed memory, so the sequence that is being decoded lives in a lane of its
    own; it moves there when its first pass comes, and out when another's does. Graphs are recorded
    when they are first needed: one for each width and each doubling of the rows that are shown.

    Args:
        weights: Whose; on a GPU.
        rotary: Angles of positions.
        plan: What to record.
        vocab_size: Tokens that a chain may choose from.
        capture: How work is recorded.
    """

    def __init__(
        self,
        weights: DecoderWeights,
        rotary: RotaryTable,
        plan: CapturePlan,
        vocab_size: int,
        capture: Capture,
    ) -> None:
        self._weights, self._rotary, self._capture = weights, rotary, capture
        self._fitting = Widths(plan.widths)
        self._steps = plan.chain_steps
        self._passes = {
            width: StaticPass(weights, width, 0, len(weights.layers), by_matrix)
            for width in plan.widths
        }
        self._chains = {
            width: StaticChain(weights, width, self._steps, vocab_size, by_matrix)
            for width in plan.chain_widths
        }
        self._lane: Tensor | None = None
        self._owner: weakref.ref[SlabCache] | None = None
        self._graphs: dict[tuple[int, int, bool], _Graph] = {}

    @property
    def chains(self) -> tuple[int, ...]:
        """Numbers of tokens that a chain can begin with."""
        return tuple(self._chains)

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of tokens that there are graphs for."""
        return self._fitting.known

    def __call__(self, tokens: Tensor, cache: SlabCache) -> Tensor | None:
        """Append ``tokens [n]`` (int64) to the sequence; its logits ``[n, V]``.

        None, with nothing done, for a number of tokens that there is no graph for.
        """
        count = tokens.shape[0]
        width = self._fitting.of(count)
        if width is None:
            return None
        (logits,) = self._run(tokens, cache, width, chain=False)
        cache.extend(count)
        return logits[:count].clone()  # the next replay writes over it

    def chain(self, tokens: Tensor, cache: SlabCache) -> tuple[Tensor, Tensor] | None:
        """Append ``tokens [n]``, then greedy choices: ``tokens [steps]``, ``confidences [steps]``.

        A token's confidence is its probability. The cache grows by n rows and those of all choices but
        the last. None, with nothing done, for a number of tokens that there is no chain for.
        """
        count = tokens.shape[0]
        if count not in self._chains:
            return None
        found, confidences = self._run(tokens, cache, count, chain=True)
        cache.extend(count + self._steps - 1)
        return found.clone(), confidences.clone()

    def drop(self, width: int) -> None:
        """Do without a width."""
        self._fitting.drop(width)

    def drop_chain(self, width: int) -> None:
        """Do without a chain."""
        del self._chains[width]

    def _run(
        self, tokens: Tensor, cache: SlabCache, width: int, *, chain: bool
    ) -> tuple[Tensor, ...]:
        """Replay a graph, recorded now if need be; its results stand until the next replay."""
        end = cache.length + width + (self._steps - 1 if chain else 0)
        shown = _FIRST_SHOWN
        while shown < end:
            shown *= 2
        self._claim(cache, shown)
        key = (width, shown, chain)
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = self._record(*key)
        graph.tokens[: tokens.shape[0]].copy_(tokens)
        graph.at.fill_(cache.length)
        graph.replay()
        return graph.results

    def _claim(self, cache: SlabCache, shown: int) -> None:
        """Bring the sequence into the lane, which has room for ``shown`` rows."""
        lane = self._lane
        if lane is None or lane.shape[2] < shown:
            w = self._weights
            shape = (len(w.layers), 2, shown, w.kv_heads, w.head_dim)
            self._leave()
            # Zeros: rows that are hidden still take part in sums, and 0 times NaN is NaN.
            lane = self._lane = torch.zeros(shape, dtype=w.dtype, device=w.device)
            self._graphs.clear()  # they know the old memory only
        if not cache.lives_in(lane):
            self._leave()
            cache.move(lane)
            self._owner = weakref.ref(cache)

    def _leave(self) -> None:
        owner = self._owner() if self._owner is not None else None
        if owner is not None and self._lane is not None and owner.lives_in(self._lane):
            owner.move(torch.zeros_like(self._lane))
        self._owner = None

    def _record(self, width: int, shown: int, chain: bool) -> _Graph:
        lane, device = self._lane, self._weights.device
        assert lane is not None
        cos, sin = self._rotary.upto(shown)
        columns = torch.arange(shown, device=device)
        steps = torch.arange(width, device=device)
        kv = lane.flatten(0, 1).unbind()
        made = _Graph(torch.zeros_like(steps), torch.zeros(1, dtype=torch.int64, device=device))

        def work() -> None:
            x, positions = made.tokens, made.at + steps
            if chain:
                made.results = self._chains[width].run(
                    x, cos, sin, positions, lambda _: columns, kv
                )
            else:
                logits = self._passes[width].run(x, cos, sin, positions, columns, kv)
                made.results = (logits.to(self._weights.dtype),)

        # Recording runs the work, at the lane's first rows: what stands there is put back.
        touched = width + self._steps
        kept = lane[:, :, :touched].clone()
        made.replay = self._capture(work)
        lane[:, :, :touched] = kept
        return made


def capture_on_gpu() -> Capture:
    """Recording by CUDA, all graphs in one pool of memory: they never run side by side."""
    pool = torch.cuda.graph_pool_handle()

    def capture(work: Callable[[], None]) -> Callable[[], None]:
        # Libraries set themselves up at the first calls, which can't be recorded.
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            work()
        return graph.replay

    return capture
