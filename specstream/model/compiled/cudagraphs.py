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
_LANE = 4096  # rows at most; longer sequences run eagerly


@dataclass(slots=True)
class _Graph:
    """One recorded pass and the memory that it reads and writes.

    ``work`` holds the tensors that the graph knows by their addresses only.
    """

    tokens: Tensor
    at: Tensor
    work: Callable[[], None] = lambda: None
    results: tuple[Tensor, ...] = ()
    replay: Callable[[], None] = lambda: None


class GraphedPasses:
    """Passes of 1 to ``max(widths)`` tokens of one sequence, recorded; see `__call__` and `chain`.

    A graph reads and writes fixed memory, so the sequence that is being decoded lives in a lane of its
    own; it moves there when its first pass comes, and out when another's does. There is one graph for
    each width and each doubling of the rows that are shown; none is ever destroyed, for they share
    their memory.

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
        shown = _FIRST_SHOWN
        while 2 * shown <= _LANE:
            shown *= 2
        shape = (len(weights.layers), 2, weights.kv_heads, shown, weights.head_dim)
        self._lane = torch.zeros(shape, dtype=weights.dtype, device=weights.device)
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
        if width is None or cache.length + width > self._lane.shape[3]:
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
        last = cache.length + count + self._steps - 1
        if count not in self._chains or last > self._lane.shape[3]:
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
        self._claim(cache)
        key = (width, shown, chain)
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = self._record(*key)
        count = tokens.shape[0]
        graph.tokens[:count].copy_(tokens)
        graph.tokens[count:].copy_(tokens[-1:].expand(width - count))
        graph.at.fill_(cache.length)
        graph.replay()
        return graph.results

    def record_all(self) -> None:
        """Record every graph that there can be."""
        with torch.inference_mode():
            keys = [(width, False) for width in self.widths]
            keys += [(width, True) for width in self.chains]
            shown = _FIRST_SHOWN
            while shown <= self._lane.shape[3]:
                for width, chain in keys:
                    if (width, shown, chain) not in self._graphs:
                        self._graphs[width, shown, chain] = self._record(width, shown, chain)
                shown *= 2

    def _claim(self, cache: SlabCache) -> None:
        """Bring the sequence into the lane."""
        if cache.lives_in(self._lane):
            return
        owner = self._owner() if self._owner is not None else None
        if owner is not None and owner.lives_in(self._lane):
            owner.move_out()
        cache.move(self._lane)
        # Rows that are hidden still take part in sums, and 0 times another's NaN is NaN.
        self._lane[:, :, :, cache.length :].zero_()
        self._owner = weakref.ref(cache)

    def _record(self, width: int, shown: int, chain: bool) -> _Graph:
        lane, device = self._lane, self._weights.device
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
        kept = lane[:, :, :, :touched].clone()
        made.work = work
        try:
            made.replay = self._capture(work)
        finally:
            lane[:, :, :, :touched] = kept
        return made


def capture_on_gpu(device: torch.device) -> Capture:
    """Recording by CUDA, all graphs in one pool of memory: they never run side by side."""
    with torch.cuda.device(device):
        pool = torch.cuda.graph_pool_handle()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def capture(work: Callable[[], None]) -> Callable[[], None]:
        with torch.cuda.device(device):
            # Libraries set themselves up at the first calls, which can't be recorded.
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    work()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # What other threads do on the device meanwhile is their affair.
            mode = "thread_local"
            with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode=mode):
                work()
        return graph.replay

    return capture
