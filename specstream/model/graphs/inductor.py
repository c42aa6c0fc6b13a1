"""Passes compiled ahead of time for this CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from specstream.model.attention.masks import Masks
from specstream.model.decoder import Decoder
from specstream.model.forward import Taps
from specstream.model.graphs.aot import Code, load_code
from specstream.model.graphs.chain import StaticChain
from specstream.model.graphs.passes import CapturePlan, CompiledPasses
from specstream.model.graphs.progress import Progress
from specstream.model.graphs.static import StaticHead, StaticPass
from specstream.model.graphs.store import PackageStore
from specstream.model.kv.base import RowCache
from specstream.model.kv.contiguous import ContiguousCache
from specstream.model.tree import Tree, positions_of

__all__ = ["InductorPasses", "packages_of"]

_BLOCK = 8  # most layers compiled as one graph
_LEAST = 4  # layers of a block that is chosen so that all blocks are alike


def _blocks(depth: int) -> list[tuple[int, int]]:
    """First layer and end of each block: alike where possible, so that one package serves all."""
    alike = (size for size in range(_BLOCK, _LEAST - 1, -1) if depth % size == 0)
    size = next(alike, _BLOCK)
    return [(start, min(start + size, depth)) for start in range(0, depth, size)]


def packages_of(depth: int, plan: CapturePlan) -> int:
    """Packages of a model of ``depth`` layers, see `InductorPasses`."""
    blocks = _blocks(depth)
    if len(blocks) == 1:
        return len(plan.widths) + len(plan.chain_widths)
    kinds = {stop - start for start, stop in blocks}
    return len(plan.widths) * (len(kinds) + 1)


@dataclass(frozen=True, slots=True)
class _Compiled:
    """The code of one width."""

    blocks: tuple[tuple[Code, slice], ...]  # with the range of their cache tensors
    head: Code | None  # where there are several blocks


class InductorPasses(CompiledPasses):
    """Passes of one sequence. A model of up to `_BLOCK` layers is one package per width.

    A deeper one is a package per kind of block and one for the head; it has no chains.

    Args:
        decoder, plan, vocab_size: See `CompiledPasses`; the decoder's attention is contiguous.
        store: Where compiled code is kept.
        progress: Is told of each package; what it raises ends the loading.

    Raises:
        ConfigError: no working C++ compiler, or the store can't be written.
    """

    shapes = True

    def __init__(
        self,
        decoder: Decoder,
        plan: CapturePlan,
        vocab_size: int,
        store: PackageStore,
        progress: Progress,
    ) -> None:
        spans = _blocks(len(decoder.weights.layers))
        if len(spans) > 1:
            plan = replace(plan, chain_widths=())
        super().__init__(decoder, plan, vocab_size)
        self._masks = Masks(1, decoder.weights.dtype, decoder.weights.device)
        self._ruler = torch.empty(0, dtype=torch.uint8)
        self._load = partial(load_code, weights=decoder.weights, store=store, progress=progress)
        self._compiled = {width: self._load_pass(width, spans) for width in self.widths}
        self._chained = {
            width: self._load(StaticChain(decoder.weights, width, self._steps, vocab_size))
            for width in self.chains
        }

    def _load_pass(self, width: int, spans: Sequence[tuple[int, int]]) -> _Compiled:
        weights, blocks, kinds = self._decoder.weights, [], set[int]()
        whole = len(spans) == 1
        for start, stop in spans:
            graph = StaticPass(weights, width, start, stop, ends=whole)
            code = self._load(graph, again=graph.depth in kinds)
            kinds.add(graph.depth)
            blocks.append((code, slice(2 * start, 2 * stop)))
        return _Compiled(tuple(blocks), None if whole else self._load(StaticHead(weights, width)))

    def _serves(self, end: int, last: int) -> bool:
        return end >= 2  # sizes below 2 are special to the compiler

    def _pass(
        self,
        tokens: Sequence[Tensor],
        caches: Sequence[RowCache],
        keeps: Sequence[int],
        width: int,
        trees: Sequence[Tree | None] | None,
        taps: Taps | None,
    ) -> list[Tensor]:
        (x,), cache, (keep,) = tokens, cast(ContiguousCache, caches[0]), keeps
        count, before, compiled = x.shape[0], cache.length, self._compiled[width]
        tree = trees[0] if trees else None
        rows, places = cache.layer_rows(before + width), self._places(before, count, width, tree)
        if width > count:
            x = torch.cat((x, x[-1:].expand(width - count)))
        wanted = frozenset[int]() if taps is None else taps.depths
        if taps is not None and 0 in wanted:
            taps.take(0, F.embedding(x[:count], self._decoder.weights.embedding))
        if compiled.head is not None:
            x = F.embedding(x, self._decoder.weights.embedding)
        for code, layers in compiled.blocks:
            x, states = code.run([x, *places, *rows[layers]])
            for depth, after in enumerate(states.unbind() if wanted else (), layers.start // 2 + 1):
                if taps is not None and depth in wanted:
                    taps.take(depth, after[:count])
        if compiled.head is not None:
            (x,) = compiled.head.run([x])
            x = x.to(self._decoder.weights.dtype)
        return [x[count - keep : count]]

    def _places(
        self, before: int, count: int, width: int, tree: Tree | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Cosines, sines and mask of ``count`` tokens and of the junk behind them."""
        cos, sin = self._decoder.rotary.upto(before + width)
        if tree is None:
            here, mask = slice(before, before + width), self._masks.causal(width, before, None)
            if mask is None:  # a single token sees every row
                mask = cos.new_zeros(1, before + 1)
            return cos[here], sin[here], mask.contiguous()
        junk = range(before + count, before + width)
        positions = torch.tensor([*positions_of(before, count, tree), *junk])
        seen = tree.seen_behind(before, count, before + width, cos.device)
        seen = F.pad(seen, (0, 0, 0, width - count), value=True)
        return cos[positions], sin[positions], self._masks.additive(seen)

    def _chain(self, tokens: Tensor, cache: RowCache) -> tuple[Tensor, Tensor]:
        end = cache.length + tokens.shape[0]
        last = end + self._steps - 1
        rows = cast(ContiguousCache, cache).layer_rows(last)
        if end > self._ruler.shape[0]:
            self._ruler = torch.empty(2 * end, dtype=torch.uint8)
        angles, ruler = self._decoder.rotary.upto(last), self._ruler[:end]
        found, confidences = self._chained[tokens.shape[0]].run([tokens, *angles, ruler, *rows])
        return found, confidences
