"""Grammars, and processors of the caller's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specstream.errors import RequestError, SamplingError, SpecstreamError
from specstream.model.grammar import GrammarState
from specstream.model.processors.base import Context, ModelFacts, Processor
from specstream.params import SamplingParams

__all__ = ["CustomProcessor", "GrammarMask"]


class GrammarMask(Processor):
    """Rules out what the grammar forbids. Host work: reads the proposed tokens, uploads a mask."""

    name = "grammar"

    def __init__(self, params: SamplingParams, model: ModelFacts) -> None:
        assert params.grammar is not None
        self._state = GrammarState(params.grammar, model.tokenizer, model.vocab_size, model.end_ids)
        least = params.min_tokens
        if least and not self._state.can_last(least):
            raise SamplingError(
                f"no reply of this grammar has min_tokens={least} tokens; lower min_tokens"
            )

    def commit(self, token: int) -> None:
        """Advance the matcher."""
        self._state.commit(token)

    def apply(self, rows: Tensor, context: Context) -> None:
        """A row behind a forbidden token is left alone: it is never used."""
        forbidden = np.zeros(rows.shape, dtype=np.bool_)
        for row, path in enumerate(context.paths):
            try:
                allowed = self._state.allowed([context.host_tokens[i] for i in path])
            except SamplingError as error:
                context.faults[row] = error
            else:
                if allowed is not None:
                    forbidden[row] = ~allowed
        mask = torch.from_numpy(forbidden).to(rows.device, non_blocking=True)
        rows.masked_fill_(mask, -torch.inf)


class CustomProcessor(Processor):
    """A function of the caller's, called row by row as transformers calls it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.name = f"processor {function!r}"

    @classmethod
    def build(cls, params: SamplingParams, model: ModelFacts) -> list[CustomProcessor]:
        """One for each function, in their order."""
        return [cls(function) for function in params.processors]

    def apply(self, rows: Tensor, context: Context) -> None:
        """Scores that can't be used become NaN where they can't be looked at without a wait."""
        for row in range(rows.shape[0]):
            if row not in context.faults:
                try:
                    scores = self._scores(context.ids(row), rows[row])
                    usable = (scores < torch.inf).all()  # also false for NaN
                    if context.may_wait and not usable:
                        raise RequestError(
                            f"logits {self.name} returned NaN or +inf; to force a token, set the "
                            "others to -inf"
                        )
                    rows[row] = scores.where(usable, torch.nan)
                except SpecstreamError as error:
                    context.faults[row] = error

    def _scores(self, ids: Tensor, row: Tensor) -> Tensor:
        """``[V]``; the function may write into its arguments.

        Raises:
            RequestError: the function raised, or returned something else than scores.
        """
        scores = row.clone().unsqueeze(0)
        try:
            out = self._function(ids.unsqueeze(0), scores)
        except SpecstreamError:
            raise
        except BaseException as error:  # a CancelledError of the function must not end our thread
            raise RequestError(f"logits {self.name} broke: {error!r}") from error
        if not isinstance(out, Tensor) or out.shape != scores.shape:
            what = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise RequestError(
                f"logits {self.name} must return scores of shape {tuple(scores.shape)}, not {what}"
            )
        return out[0]
