"""Logits processors with the right context for every drafted position.

Row j of a judgement follows the committed tokens *and the first j drafted ones*; whatever looks at
the context (penalties, bans, minimum length, grammar, anyone's own processor) must see exactly that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specstream.errors import RequestError, SamplingError, SpecstreamError
from specstream.model.grammar import GrammarState
from specstream.types import SamplingParams

__all__ = ["LogitsPipeline"]


class LogitsPipeline:
    """The processors of one request. `commit` must be told every committed token, in order."""

    def __init__(
        self,
        params: SamplingParams,
        tokenizer: Any,
        prompt_ids: Sequence[int],
        vocab_size: int,
        end_ids: frozenset[int],
        device: torch.device,
    ) -> None:
        self._params = params
        self._prompt_length = len(prompt_ids)
        self._vocab_size = vocab_size
        self._device = device
        self._end_ids = sorted(end_ids | set(params.stop_token_ids))
        self._seen = set(prompt_ids)
        self._counts: Counter[int] = Counter()
        self._bans = _ban_sequences(params.bad_words, tokenizer)
        self._bias = self._bias_row()
        self._grammar = (
            GrammarState(params.grammar, tokenizer, vocab_size, end_ids)
            if params.grammar is not None
            else None
        )

    @staticmethod
    def needed(params: SamplingParams) -> bool:
        """Whether any processor is on."""
        return not params.plain_logits

    def commit(self, token: int) -> None:
        """A token of the reply is final."""
        self._seen.add(token)
        self._counts[token] += 1
        if self._grammar is not None:
            self._grammar.commit(token)

    def apply_rows(self, logits: Tensor, token_ids: list[int], drafted: list[int]) -> Tensor:
        """Process ``[K + 1, V]``: row j in the context of the first j drafted tokens."""
        rows = [self.apply(row, token_ids, drafted[:j]) for j, row in enumerate(logits)]
        return torch.stack(rows)

    def apply(self, logits: Tensor, token_ids: list[int], drafted: list[int]) -> Tensor:
        """Process ``[V]`` in the context of ``token_ids`` and ``drafted``.

        Raises:
            RequestError: a processor of the request's own broke.
        """
        params, logits = self._params, logits.float().clone()
        self._penalise(logits, drafted)
        if self._bias is not None:
            logits += self._bias
        for *before, last in self._bans:
            context = token_ids[-len(before) :] + drafted if before else []
            if not before or context[-len(before) :] == before:
                logits[last] = -torch.inf
        if len(token_ids) - self._prompt_length + len(drafted) < params.min_tokens:
            logits[self._end_ids] = -torch.inf
        if self._grammar is not None:
            self._grammar.mask(logits, drafted)
        for processor in params.processors:
            logits = self._run(processor, logits, token_ids + drafted)
        return logits

    def _penalise(self, logits: Tensor, drafted: list[int]) -> None:
        params = self._params
        if params.repetition_penalty != 1.0:
            at = torch.tensor(sorted(self._seen | set(drafted)), device=self._device)
            there = logits[at]
            factor = params.repetition_penalty
            logits[at] = torch.where(there < 0, there * factor, there / factor)
        if params.frequency_penalty or params.presence_penalty:
            counts = self._counts + Counter(drafted)
            if counts:
                at = torch.tensor(list(counts), device=self._device)
                times = torch.tensor(list(counts.values()), device=self._device)
                logits[at] -= params.frequency_penalty * times + params.presence_penalty

    def _run(self, processor: Any, logits: Tensor, ids: list[int]) -> Tensor:
        context = torch.tensor([ids], device=self._device)
        try:
            out: Tensor = processor(context, logits.unsqueeze(0))
        except SpecstreamError:
            raise
        except Exception as error:
            raise RequestError(f"logits processor {processor!r} broke: {error!r}") from error
        if not isinstance(out, Tensor) or out.shape != (1, logits.shape[0]):
            raise RequestError(f"logits processor {processor!r} must return scores [1, V]")
        return out[0]

    def _bias_row(self) -> Tensor | None:
        bias = self._params.logit_bias
        if not bias:
            return None
        wrong = [i for i in bias if not 0 <= i < self._vocab_size]
        if wrong:
            raise SamplingError(f"logit_bias names token {wrong[0]}; there are {self._vocab_size}")
        row = torch.zeros(self._vocab_size, device=self._device)
        row[list(bias)] = torch.tensor(list(bias.values()), dtype=row.dtype, device=self._device)
        return row


def _ban_sequences(words: Sequence[str], tokenizer: Any) -> list[list[int]]:
    """Each word as it is tokenised at the start of a text and after a space, as transformers does."""
    found: list[list[int]] = []
    for word in words:
        for text in (word, " " + word.lstrip()):
            ids = [int(i) for i in tokenizer.encode(text, add_special_tokens=False)]
            if ids and ids not in found:
                found.append(ids)
    return found
