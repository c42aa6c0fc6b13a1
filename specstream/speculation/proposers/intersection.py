"""A draft restricted to the tokens that both vocabularies have (TLI, Timor et al. 2025).

The draft's logits of common tokens are moved to the target's ids; all other ids get -inf. The softmax of
that is q restricted to the common tokens and normalised again, which tokens are really drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specstream.model.forward import ForwardInput, ForwardOutput
from specstream.model.graphs import Draws
from specstream.model.heads.base import spread
from specstream.model.kv import KVCache
from specstream.model.runner import ModelRunner
from specstream.model.stop import Stop
from specstream.model.vocabulary import Translation

__all__ = ["IntersectionRunner"]


class IntersectionRunner:
    """A draft model that reads and writes the target's token ids; like a `ModelRunner`.

    Logits are as wide as the target's. Input ids are the target's ids of common tokens, or any of the
    draft's own ids plus ``shift``.

    Attributes:
        shift: The width of the target's logits.
        model_vocab_size: The number of input ids.
        vocab_size: The width of its logits.
    """

    def __init__(self, runner: ModelRunner, translation: Translation) -> None:
        self._runner = runner
        self.device = runner.device
        self.context_length = runner.context_length
        self.shift = self.vocab_size = width = translation.target_rows
        self.model_vocab_size = width + translation.draft_rows
        pairs = torch.tensor(translation.pairs, device=runner.device)
        self._target_ids, self._draft_ids = pairs[:, 0].contiguous(), pairs[:, 1].contiguous()
        # A target id without a counterpart is never drawn, so its entry (0) is never used.
        self._own = torch.zeros(width + translation.draft_rows, dtype=torch.int64)
        self._own = self._own.to(runner.device)
        self._own[self._target_ids] = self._draft_ids
        self._own[width:] = torch.arange(translation.draft_rows, device=runner.device)

    def new_cache(self) -> KVCache:
        """An empty cache for one sequence."""
        return self._runner.new_cache()

    def forward(self, inputs: Sequence[ForwardInput]) -> ForwardOutput:
        """As `ModelRunner.forward`, with ids and logits as the class describes."""
        own = [replace(item, token_ids=self._own[item.token_ids]) for item in inputs]
        return ForwardOutput([self._common(one) for one in self._runner.forward(own).logits])

    def chain(
        self, token_ids: Tensor, cache: KVCache, most: int, stop: Stop | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """None: a chain in one call would choose among all of the draft's tokens."""
        return None

    @property
    def captured_steps(self) -> int:
        """0, for the same reason."""
        return 0

    def chains(
        self, tokens: Sequence[Tensor], caches: Sequence[KVCache], draws: Draws | None = None
    ) -> None:
        """None, for the same reason."""
        return None

    def _common(self, logits: Tensor) -> Tensor:
        return spread(logits[:, self._draft_ids], self._target_ids, self.shift)
