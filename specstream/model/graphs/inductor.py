"""Passes compiled ahead of time for this CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from specstream.model.graphs.aot import Code, load_code
from specstream.model.graphs.chain import StaticChain
from specstream.model.graphs.passes import CompiledPasses
from specstream.model.graphs.progress import Progress
from specstream.model.graphs.static import StaticPass, by_rows
from specstream.model.graphs.store import PackageStore
from specstream.model.graphs.widths import CapturePlan
from specstream.model.slab import SlabCache
from specstream.model.weights import DecoderWeights, RotaryTable

__all__ = ["InductorPasses"]

_BLOCK = 8  # layers compiled as one: a deeper model calls the same code for one block after another


@dataclass(frozen=True, slots=True)
class _Block:
    """Some layers' code; ``start`` and ``stop`` count tensors of the cache, two a layer."""

    code: Code
    start: int
    stop: int


class InductorPasses(CompiledPasses):
    """Passes compiled for this CPU; no chains of a model that is deeper than a block.

    Args:
        weights, rotary, plan, vocab_size: See `CompiledPasses`.
        store: Where compiled code is kept.
        progress: Is told of each package; what it raises then ends the loading.

    Raises:
        ConfigError: no working C++ compiler, or the store can't be written.
    """

    def __init__(
        self,
        weights: DecoderWeights,
        rotary: RotaryTable,
        plan: CapturePlan,
        vocab_size: int,
        store: PackageStore,
        progress: Progress,
    ) -> None:
        if len(weights.layers) > _BLOCK:
            plan = replace(plan, chain_widths=())
        super().__init__(weights, rotary, plan, vocab_size)
        self._ruler = torch.empty(0, dtype=torch.uint8)
        self._load = partial(load_code, weights=weights, store=store, progress=progress)
        self._blocks = {width: self._load_blocks(width) for width in self.widths}
        self._chained = {width: self._load_chain(width) for width in self.chains}

    @staticmethod
    def packages(depth: int, plan: CapturePlan) -> int:
        """How many are loaded for a model of ``depth`` layers."""
        blocks = -(-depth // _BLOCK)
        return len(plan.widths) * blocks + (len(plan.chain_widths) if blocks == 1 else 0)

    def _serves(self, read: int, end: int) -> bool:
        return read >= 2  # sizes below 2 are special to the compiler

    def _pass(self, tokens: Tensor, cache: SlabCache, width: int) -> Tensor:
        count, end = tokens.shape[0], cache.length + width
        if width > count:
            tokens = torch.cat((tokens, tokens[-1:].expand(width - count)))
        rows, (cos, sin, ruler) = cache.rows(end), self._places(end, end)
        x = tokens
        for block in self._blocks[width]:
            (x,) = block.code.run([x, cos, sin, ruler, *rows[block.start : block.stop]])
        return x[:count] if width > count else x

    def _chain(self, tokens: Tensor, cache: SlabCache) -> tuple[Tensor, Tensor]:
        count = tokens.shape[0]
        end = cache.length + count
        last = end + self._steps - 1
        rows = cache.rows(last)
        found, confidences = self._chained[count].run([tokens, *self._places(end, last), *rows])
        return found, confidences

    def _places(self, end: int, last: int) -> tuple[Tensor, Tensor, Tensor]:
        """Angles of the positions below ``last``, and a ruler of length ``end``."""
        if end > self._ruler.shape[0]:
            self._ruler = torch.empty(2 * end, dtype=torch.uint8)
        return *self._rotary.upto(last), self._ruler[:end]

    def _load_blocks(self, width: int) -> tuple[_Block, ...]:
        weights, depth = self._weights, len(self._weights.layers)
        blocks = []
        for start in range(0, depth, _BLOCK):
            stop = min(start + _BLOCK, depth)
            graph = StaticPass(weights, width, start, stop, by_rows)
            code = self._load(graph, width=width, layers=(start, stop), what={})
            blocks.append(_Block(code, 2 * start, 2 * stop))
        return tuple(blocks)

    def _load_chain(self, width: int) -> Code:
        return self._load(
            StaticChain(self._weights, width, self._steps, self._vocab_size, by_rows),
            width=width,
            layers=(0, len(self._weights.layers)),
            what={"steps": self._steps, "chosen_from": self._vocab_size},
        )
