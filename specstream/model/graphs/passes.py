"""The interface of captured passes, and which passes of a target and a draft to capture."""

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
    """The passes of a model to capture."""

    widths: tuple[int, ...]  # numbers of tokens that a pass reads per sequence
    chain_widths: tuple[int, ...] = ()  # numbers of tokens that a greedy chain reads first
    chain_steps: int = 0  # number of tokens that a chain chooses


# Wider passes are rare, and with the library's matrix products as fast without a capture.
TARGET = CapturePlan((1, 2, 3, 4, 5, 6, 8))
# After a round one or two tokens are new to the draft: the bonus token and the last accepted one.
DRAFT = CapturePlan((1, 2, 3), chain_widths=(1, 2), chain_steps=4)


class CompiledPasses(ABC):
    """A model's captured passes (`__call__`) and chains of greedy steps (`chain`).

    A pass of a width that was not captured runs as the next wider one, with junk behind its tokens.

    Args:
        decoder: The model.
        plan: The passes to capture.
        vocab_size: A chain chooses from this many first tokens of the vocabulary.

    Attributes:
        widths: Captured numbers of tokens per sequence, increasing.
        chains: Captured numbers of tokens that a chain reads in its first step.
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
        """Append int64 ``tokens [n]`` to each sequence; return logits of the last, ``[keep, V]`` each.

        Returns None, with nothing done, if no captured pass fits.
        """
        counts = [ids.shape[0] for ids in tokens]
        width = next((width for width in self.widths if width >= max(counts)), 0)
        ends = [cache.length + width for cache in caches]
        served = width and len(caches) <= self.batches[-1]
        if not served or not all(map(self._serves, ends)):
            return None
        logits = self._pass(tokens, caches, keeps, width)
        for cache, count in zip(caches, counts, strict=True):
            cache.append_to(cache.length + count)
        return logits

    def chain(self, tokens: Tensor, cache: RowCache) -> tuple[Tensor, Tensor] | None:
        """Append ``tokens [n]``, then greedy choices; return ``choices [steps], confidences [steps]``.

        A confidence is the probability of the chosen token. The cache grows by n rows and one for each
        choice but the last. Returns None, with nothing done, if no captured chain fits.
        """
        count = tokens.shape[0]
        end = cache.length + count + self._steps - 1
        if count not in self.chains or not self._serves(end):
            return None
        found = self._chain(tokens, cache)
        cache.append_to(end)
        return found

    def drop(self, width: int) -> None:
        """Drop the captured passes of a width; the next wider ones then serve it."""
        self.widths = tuple(known for known in self.widths if known != width)

    def drop_chain(self, width: int) -> None:
        """Drop the captured chain that begins by reading ``width`` tokens."""
        self.chains = tuple(known for known in self.chains if known != width)

    @abstractmethod
    def _serves(self, rows: int) -> bool:
        """Whether a sequence may have ``rows`` rows after a pass or chain."""

    @abstractmethod
    def _pass(
        self,
        tokens: Sequence[Tensor],
        caches: Sequence[RowCache],
        keeps: Sequence[int],
        width: int,
    ) -> list[Tensor]:
        """Run a pass: logits ``[keep, V]`` each. Writes ``width`` rows per cache, validates none."""

    @abstractmethod
    def _chain(self, tokens: Tensor, cache: RowCache) -> tuple[Tensor, Tensor]:
        """Run a chain, see `chain`; validates no rows."""
