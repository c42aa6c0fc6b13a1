"""Biases, and tokens that are ruled out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specstream.errors import SamplingError
from specstream.model.processors.base import Context, ModelFacts, Processor
from specstream.model.transfer import to_device
from specstream.params import SamplingParams

__all__ = ["BadWords", "LogitBias", "MinTokens", "SequenceBias"]


class LogitBias(Processor):
    """Adds a number to the logits of some tokens."""

    name = "logit_bias"

    def __init__(self, params: SamplingParams, model: ModelFacts) -> None:
        bias, size = params.logit_bias, model.vocab_size
        wrong = [i for i in bias if not 0 <= i < size]
        if wrong:
            raise SamplingError(f"logit_bias names token {wrong[0]}; there are {size}")
        self._row = torch.zeros(size, device=model.device)
        index = to_device(list(bias), model.device)
        self._row[index] = to_device(list(bias.values()), model.device, torch.float32)

    def apply(self, rows: Tensor, context: Context) -> None:
        """The same for every row."""
        rows += self._row


class SequenceBias:
    """Adds a number to the last token of each of B sequences, where the tokens before it precede."""

    def __init__(
        self, sequences: Sequence[Sequence[int]], biases: Sequence[float], device: torch.device
    ) -> None:
        self.longest = max(map(len, sequences)) - 1
        pads = [[-1] * (self.longest + 1 - len(sequence)) for sequence in sequences]
        before = [[*pad, *sequence[:-1]] for pad, sequence in zip(pads, sequences, strict=True)]
        self._before = to_device(before, device).reshape(len(sequences), self.longest)
        self._last = to_device([sequence[-1] for sequence in sequences], device)
        self._biases = to_device(biases, device, torch.float32)

    def add(self, rows: Tensor, tail: Tensor) -> None:
        """Change ``rows [n, V]`` in place; ``tail [n, longest]`` are the tokens before each."""
        before = self._before
        there = ((tail.unsqueeze(1) == before) | (before < 0)).all(-1)
        rows.index_add_(1, self._last, torch.where(there, self._biases, 0.0))


class BadWords(Processor):
    """Rules out the last token of each text where its other tokens precede, as transformers does."""

    name = "bad_words"

    def __init__(self, params: SamplingParams, model: ModelFacts) -> None:
        found = [ids for word in params.bad_words for ids in _spellings(word, model)]
        self._bans = SequenceBias(found, [-torch.inf] * len(found), model.device) if found else None

    def apply(self, rows: Tensor, context: Context) -> None:
        """Compare the last tokens before each row with all texts at once."""
        if self._bans is not None:
            self._bans.add(rows, context.tail(self._bans.longest))


def _spellings(word: str, model: ModelFacts) -> list[list[int]]:
    """A word as it is tokenised at the start of a text and after a space."""
    found: list[list[int]] = []
    for text in (word, " " + word.lstrip()):
        ids = [int(i) for i in model.tokenizer.encode(text, add_special_tokens=False)]
        if model.end_ids.intersection(ids):
            raise SamplingError(
                f"bad_words can't name an end of sequence ({word!r}); min_tokens keeps a reply open"
            )
        # A text that the tokenizer or the model has no tokens for can't be written anyway.
        unknown = model.tokenizer.unk_token_id in ids or max(ids, default=0) >= model.vocab_size
        if ids and not unknown:
            found.append(ids)
    return found


class MinTokens(Processor):
    """Rules out all ends before the reply has ``min_tokens`` tokens."""

    name = "min_tokens"

    def __init__(self, params: SamplingParams, model: ModelFacts) -> None:
        self._least = len(model.prompt_ids) + params.min_tokens
        ends = sorted(model.end_ids | set(params.stop_token_ids))
        self._ends = to_device(ends, model.device)

    def apply(self, rows: Tensor, context: Context) -> None:
        """Lengths are known on the host."""
        for row, path in zip(rows, context.paths, strict=True):
            if len(context.token_ids) + len(path) < self._least:
                row.index_fill_(0, self._ends, -torch.inf)
