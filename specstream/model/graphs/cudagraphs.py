"""Passes recorded as CUDA graphs: one launch for all kernels of a pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specstream.model.graphs.chain import StaticChain
from specstream.model.graphs.passes import CompiledPasses
from specstream.model.graphs.static import StaticPass, by_matrix
from specstream.model.graphs.widths import CapturePlan
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


class GraphedPasses(CompiledPasses):
    """Passes recorded on a GPU.

    A graph reads and writes fixed memory, so the sequence that is being decoded lives in a lane of its
    own; it moves there when its first pass comes, and out when another's does. There is one graph for
    each width and each doubling of the rows that are shown; none is ever destroyed, for they share
    their memory.

    Args:
        weights, rotary, plan, vocab_size: See `CompiledPasses`.
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
        super().__init__(weights, rotary, plan, vocab_size)
        self._capture = capture
        self._passes = {
            width: StaticPass(weights, width, 0, len(weights.layers), by_matrix)
            for width in plan.widths
        }
        self._chained = {
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

    def _serves(self, read: int, end: int) -> bool:
        return end <= self._lane.shape[3]

    def _pass(self, tokens: Tensor, cache: SlabCache, width: int) -> Tensor:
        (logits,) = self._run(tokens, cache, width, chain=False)
        return logits[: tokens.shape[0]].clone()  # the next replay writes over it

    def _chain(self, tokens: Tensor, cache: SlabCache) -> tuple[Tensor, Tensor]:
        found, confidences = self._run(tokens, cache, tokens.shape[0], chain=True)
        return found.clone(), confidences.clone()

    def _run(
        self, tokens: Tensor, cache: SlabCache, width: int, *, chain: bool
    ) -> tuple[Tensor, ...]:
        """Replay a graph, recorded now if need be; its results stand until the next replay."""
        end = cache.length + width + (self._steps - 1 if chain else 0)
        shown = _FIRST_SHOWN
        while shown < end:
            shown *= 2
        self._claim(cache, end)
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

    def record_all(self, check: Callable[[], None]) -> None:
        """Record every graph that there can be; ``check`` is called before each."""
        with torch.inference_mode():
            keys = [(width, False) for width in self.widths]
            keys += [(width, True) for width in self.chains]
            shown = _FIRST_SHOWN
            while shown <= self._lane.shape[3]:
                for width, chain in keys:
                    if (width, shown, chain) not in self._graphs:
                        check()
                        self._graphs[width, shown, chain] = self._record(width, shown, chain)
                shown *= 2

    def _claim(self, cache: SlabCache, end: int) -> None:
        """Bring the sequence, which is about to be written up to ``end``, into the lane."""
        if not cache.lives_in(self._lane):
            owner = self._owner() if self._owner is not None else None
            if owner is not None and owner.lives_in(self._lane):
                owner.move_out()
            self._owner = weakref.ref(cache)
            cache.move(self._lane)
        cache.clear_hidden()
        cache.reserve(end)

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
                made.results = self._chained[width].run(
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
