"""Penalties on tokens that occurred before."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from specstream.model.processors.base import Context, ModelFacts, Processor
from specstream.model.transfer import to_device
from specstream.params import SamplingParams

__all__ = ["CountPenalty", "RepetitionPenalty"]


class RepetitionPenalty(Processor):
    """Lowers the logits of tokens in prompt and reply by a factor (Keskar et al. 2019)."""

    name = "repetition_penalty"

    def __init__(self, params: SamplingParams, model: ModelFacts) -> None:
        self._factor = params.repetition_penalty
        self._device = model.device
        self._seen = dict.fromkeys(model.prompt_ids)
        self._index: Tensor | None = None

    def commit(self, token: int) -> None:
        """Count the token among those seen."""
        if token not in self._seen:
            self._seen[token] = None
            self._index = None

    def apply(self, rows: Tensor, context: Context) -> None:
        """Every entry is computed from the row as it was, so a token that is named twice counts once."""
        if self._index is None:
            self._index = to_device(list(self._seen), self._device)
        proposed = context.proposed()
        proposed = proposed.where(proposed >= 0, context.token_ids[-1])  # one that is seen anyway
        index = torch.cat([self._index.expand(rows.shape[0], -1), proposed], 1)
        scores = rows.gather(1, index)
        scaled = torch.where(scores < 0, scores * self._factor, scores / self._factor)
        rows.scatter_(1, index, scaled)


class CountPenalty(Processor):
    """Frequency and presence penalties of the OpenAI API, over the tokens of the reply."""

    name = "frequency_penalty or presence_penalty"

    def __init__(self, params: SamplingParams, model: ModelFacts) -> None:
        self._frequency, self._presence = params.frequency_penalty, params.presence_penalty
        self._model = model
        self._counts = Counter[int]()
        self._committed: tuple[Tensor, Tensor] | None = None

    def commit(self, token: int) -> None:
        """Count the token."""
        self._counts[token] += 1
        self._committed = None

    def apply(self, rows: Tensor, context: Context) -> None:
        """As for the repetition penalty, every entry is computed once, from its count in all."""
        tokens, counts = self._on_device()
        proposed = context.proposed()
        spots = proposed.where(proposed >= 0, context.token_ids[-1])
        index = torch.cat([tokens.expand(rows.shape[0], -1), spots], 1)
        total = counts[index] + (index.unsqueeze(-1) == proposed.unsqueeze(-2)).sum(-1)
        charge = total * self._frequency + (total > 0) * self._presence
        rows.scatter_(1, index, rows.gather(1, index) - charge.float())

    def _on_device(self) -> tuple[Tensor, Tensor]:
        """The committed tokens, each once, and how often each token of the vocabulary was committed."""
        if self._committed is None:
            device = self._model.device
            tokens = to_device(list(self._counts), device)
            counts = torch.zeros(self._model.vocab_size, dtype=torch.float64, device=device)
            counts[tokens] = to_device(list(self._counts.values()), device, torch.float64)
            self._committed = tokens, counts
        return self._committed
