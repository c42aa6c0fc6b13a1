"""What captured passes have in common, however they are captured."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from specstream.model.graphs.widths import CapturePlan, Widths
from specstream.model.slab import SlabCache
from specstream.model.weights import DecoderWeights, RotaryTable

__all__ = ["CompiledPasses"]


class CompiledPasses(ABC):
    """A model's captured passes, for one sequence at a time; see `__call__` and `chain`.

    A pass of a width that was not captured runs as the next wider one, with junk behind.

    Args:
        weights: Whose.
        rotary: Angles of positions.
        plan: What to capture.
        vocab_size: Tokens that a chain may choose from.

    Attributes:
        chains: Numbers of tokens that a chain of greedy steps can begin with.
    """

    def __init__(
        self, weights: DecoderWeights, rotary: RotaryTable, plan: CapturePlan, vocab_size: int
    ) -> None:
        self._weights, self._rotary, self._vocab_size = weights, rotary, vocab_size
        self._fitting = Widths(plan.widths)
        self.chains, self._steps = plan.chain_widths, plan.chain_steps

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of tokens of the passes."""
        return self._fitting.known

    def __call__(self, tokens: Tensor, cache: SlabCache) -> Tensor | None:
        """Append ``tokens [n]`` (int64) to the sequence; its logits ``[n, V]``.

        None, with nothing done, where no pass is captured for that.
        """
        count = tokens.shape[0]
        width = self._fitting.of(count)
        if width is None or not self._serves(cache.length + width, cache.length + width):
            return None
        logits = self._pass(tokens, cache, width)
        cache.extend(count)
        return logits

    def chain(self, tokens: Tensor, cache: SlabCache) -> tuple[Tensor, Tensor] | None:
        """Append ``tokens [n]``, then greedy choices: ``tokens [steps]``, ``confidences [steps]``.

        A token's confidence is its probability. The cache grows by n rows and those of all choices but
        the last. None, with nothing done, where no chain is captured for that.
        """
        count = tokens.shape[0]
        more = count + self._steps - 1
        if count not in self.chains or not self._serves(cache.length + count, cache.length + more):
            return None
        found = self._chain(tokens, cache)
        cache.extend(more)
        return found

    def drop(self, width: int) -> None:
        """Do without a width."""
        self._fitting.drop(width)

    def drop_chain(self, width: int) -> None:
        """Do without a chain."""
        self.chains = tuple(known for known in self.chains if known != width)

    @abstractmethod
    def _serves(self, read: int, end: int) -> bool:
        """Whether a sequence can be ``read`` tokens long behind a pass, ``end`` behind its chain."""

    @abstractmethod
    def _pass(self, tokens: Tensor, cache: SlabCache, width: int) -> Tensor:
        """Logits ``[n, V]``, rows written but not counted in; n <= ``width``."""

    @abstractmethod
    def _chain(self, tokens: Tensor, cache: SlabCache) -> tuple[Tensor, Tensor]:
        """The same for a chain."""
