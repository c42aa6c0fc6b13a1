"""What captured passes have in common, however they are captured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from specstream.model.decoder import Decoder
from specstream.model.kv.base import RowCache

__all__ = ["DRAFT", "TARGET", "CapturePlan", "CompiledPasses"]


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """Which of a model's passes are captured."""

    widths: tuple[int, ...]  # tokens per sequence of a pass
    chain_widths: tuple[int, ...] = ()  # tokens that a chain of greedy steps begins by reading
    chain_steps: int = 0  # tokens that a chain writes


# Wider passes are rare, and the library's matrix products are as fast for those.
TARGET = CapturePlan((1, 2, 3, 4, 5, 6, 8))
# After a round one or two tokens are new to the draft: the bonus token and the last accepted one.
DRAFT = CapturePlan((1, 2, 3), chain_widths=(1, 2), chain_steps=4)


class CompiledPasses(ABC):
    """A model's captured passes; see `__call__` and `chain`.

    A pass of a width that was not captured runs as the next wider one, with junk behind its tokens.

    Args:
        decoder: The model.
        plan: What to capture.
        vocab_size: Tokens that a chain may choose from.

    Attributes:
        widths: Captured widths, increasing.
        chains: Numbers of tokens that a chain of greedy steps can begin with.
        batches: Captured numbers of sequences, increasing.
    """

    batches: tuple[int, ...] = (1,)

    def __init__(self, decoder: Decoder, plan: CapturePlan, vocab_size: int) -> None:
        self._decoder, self._vocab_size = decoder, vocab_size
        self.widths = tuple(sorted(plan.widths))
        self.chains, self._steps = plan.chain_widths, plan.chain_steps

    def __call__(
        self,
        tokens: Sequence[Tensor],
        caches: Sequence[RowCache],
        keeps: Sequence[int],
    ) -> list[Tensor] | None:
        """Append ``tokens [n]`` (int64) to each sequence; logits of the last, ``[keep, V]`` each.

        None, with nothing done, where no pass is captured for that.
        """
        counts = [ids.shape[0] for ids in tokens]
        width = next((width for width in self.widths if width >= max(counts)), 0)
        ends = [cache.length + width for cache in caches]
        served = width and len(caches) <= self.batches[-1]
        if not served or not all(self._serves(end, end) for end in ends):
            return None
        logits = self._pass(tokens, caches, keeps, width)
        for cache, count in zip(caches, counts, strict=True):
            cache.append_to(cache.length + count)
        return logits

    def chain(self, tokens: Tensor, cache: RowCache) -> tuple[Tensor, Tensor] | None:
        """Append ``tokens [n]``, then greedy choices: ``tokens [steps]``, ``confidences [steps]``.

        A token's confidence is its probability. The cache grows by n rows and those of all choices but
        the last. None, with nothing done, where no chain is captured for that.
        """
        count = tokens.shape[0]
        end = cache.length + count
        last = end + self._steps - 1
        if count not in self.chains or not self._serves(end, last):
            return None
        found = self._chain(tokens, cache)
        cache.append_to(last)
        return found

    def drop(self, width: int) -> None:
        """Serve a width's passes by the next wider one."""
        self.widths = tuple(known for known in self.widths if known != width)

    def drop_chain(self, width: int) -> None:
        """Serve no chain that begins with so many tokens."""
        self.chains = tuple(known for known in self.chains if known != width)

    @abstractmethod
    def _serves(self, end: int, last: int) -> bool:
        """Whether a sequence can have ``end`` rows after a pass, ``last`` after its chain."""

    @abstractmethod
    def _pass(
        self,
        tokens: Sequence[Tensor],
        caches: Sequence[RowCache],
        keeps: Sequence[int],
        width: int,
    ) -> list[Tensor]:
        """Logits ``[keep, V]`` each; writes ``width`` rows of each cache, validates none."""

    @abstractmethod
    def _chain(self, tokens: Tensor, cache: RowCache) -> tuple[Tensor, Tensor]:
        """The same for a chain."""
