"""Passes compiled ahead of time for this CPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specstream.model.compiled.aot import Code, load_code
from specstream.model.compiled.chain import StaticChain
from specstream.model.compiled.static import StaticPass, by_rows
from specstream.model.compiled.store import PackageStore
from specstream.model.compiled.widths import CapturePlan, Widths
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


class InductorPasses:
    """Passes of 1 to ``max(widths)`` tokens of one sequence, compiled; see `__call__` and `chain`.

    A pass of a width that was not compiled runs as the next wider one, with junk behind.

    Args:
        weights: Whose; on a CPU.
        rotary: Angles of positions.
        plan: What to compile.
        vocab_size: Tokens that a chain may choose from.
        store: Where compiled code is kept.

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
    ) -> None:
        self._weights, self._rotary, self._store = weights, rotary, store
        self._ruler = torch.empty(0, dtype=torch.uint8)
        self._blocks = {width: self._load(width) for width in sorted(plan.widths)}
        self._fitting = Widths(plan.widths)
        self._steps = plan.chain_steps
        shallow = len(weights.layers) <= _BLOCK
        chains = plan.chain_widths if shallow else ()
        self._chains = {width: self._load_chain(width, vocab_size) for width in chains}

    @property
    def chains(self) -> tuple[int, ...]:
        """Numbers of tokens that a chain can begin with."""
        return tuple(self._chains)

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of tokens that there is code for."""
        return self._fitting.known

    def __call__(self, tokens: Tensor, cache: SlabCache) -> Tensor | None:
        """Append ``tokens [n]`` (int64) to the sequence; its logits ``[n, V]``.

        None, with nothing done, for a number of tokens that there is no code for.
        """
        count = tokens.shape[0]
        width = self._fitting.of(count)
        if width is None or cache.length + width < 2:  # sizes below 2 are special to the compiler
            return None
        if width > count:
            tokens = torch.cat((tokens, tokens[-1:].expand(width - count)))
        end = cache.length + width
        rows, (cos, sin, ruler) = cache.rows(end), self._places(end, end)
        x = tokens
        for block in self._blocks[width]:
            (x,) = block.code.run([x, cos, sin, ruler, *rows[block.start : block.stop]])
        cache.extend(count)
        return x[:count] if width > count else x

    def chain(self, tokens: Tensor, cache: SlabCache) -> tuple[Tensor, Tensor] | None:
        """Append ``tokens [n]``, then greedy choices: ``tokens [steps]``, ``confidences [steps]``.

        A token's confidence is its probability. The cache grows by n rows and those of all choices but
        the last. None, with nothing done, for a number of tokens that there is no chain for.
        """
        count = tokens.shape[0]
        code = self._chains.get(count)
        if code is None or cache.length + count < 2:
            return None
        end = cache.length + count
        last = end + self._steps - 1
        rows = cache.rows(last)
        found, confidences = code.run([tokens, *self._places(end, last), *rows])
        cache.extend(last - cache.length)
        return found, confidences

    def drop(self, width: int) -> None:
        """Do without a width."""
        del self._blocks[width]
        self._fitting.drop(width)

    def drop_chain(self, width: int) -> None:
        """Do without a chain."""
        del self._chains[width]

    def _places(self, end: int, last: int) -> tuple[Tensor, Tensor, Tensor]:
        """Angles of the positions below ``last``, and a ruler of length ``end``."""
        if end > self._ruler.shape[0]:
            self._ruler = torch.empty(2 * end, dtype=torch.uint8)
        return *self._rotary.upto(last), self._ruler[:end]

    def _load(self, width: int) -> tuple[_Block, ...]:
        weights, depth = self._weights, len(self._weights.layers)
        blocks = []
        for start in range(0, depth, _BLOCK):
            stop = min(start + _BLOCK, depth)
            graph = StaticPass(weights, width, start, stop, by_rows)
            code = load_code(
                graph, weights, width=width, layers=(start, stop), what={}, store=self._store
            )
            blocks.append(_Block(code, 2 * start, 2 * stop))
        return tuple(blocks)

    def _load_chain(self, width: int, vocab_size: int) -> Code:
        return load_code(
            StaticChain(self._weights, width, self._steps, vocab_size, by_rows),
            self._weights,
            width=width,
            layers=(0, len(self._weights.layers)),
            what={"steps": self._steps, "chosen_from": vocab_size},
            store=self._store,
        )
