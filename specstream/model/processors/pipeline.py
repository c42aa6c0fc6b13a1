"""All processors of one request, with the right context for every proposed position.

Row j of a verification follows the committed tokens *and the proposed ones before it*; whatever looks at
the context must see exactly that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from specstream.errors import ModelBroken, SamplingError, SpecstreamError
from specstream.model.processors.bans import BadWords, LogitBias, MinTokens
from specstream.model.processors.base import Context, ModelFacts, Processor
from specstream.model.processors.constraints import CustomProcessor, GrammarMask
from specstream.model.processors.penalties import CountPenalty, RepetitionPenalty
from specstream.model.sampling import free_to_look
from specstream.model.transfer import to_device
from specstream.params import SamplingParams

__all__ = ["PROCESSORS", "LogitsPipeline", "Processed"]

PROCESSORS: Mapping[str, type[Processor]] = {
    "repetition_penalty": RepetitionPenalty,
    "frequency_penalty": CountPenalty,
    "presence_penalty": CountPenalty,
    "logit_bias": LogitBias,
    "bad_words": BadWords,
    "min_tokens": MinTokens,
    "grammar": GrammarMask,
    "processors": CustomProcessor,
}
"""The class of every parameter of stage ``"logits"``, in the order that `SamplingParams` promises."""


def _not_finite(row: int) -> SpecstreamError:
    return ModelBroken(
        "the target's logits are not numbers: damaged weights, or overflow in its dtype"
    )


@dataclass(frozen=True, slots=True)
class Processed:
    """Logits that can be verified.

    Attributes:
        rows: ``[n, V]``. A row that could not be processed holds NaN, or -inf only.
        fault: Why a row is of that kind. Call it for rows that the reply gets to, before the next pass
            of the target: it may have to process the row again.
    """

    rows: Tensor
    fault: Callable[[int], SpecstreamError] = _not_finite


class LogitsPipeline:
    """The processors of one request. `commit` must be told every committed token, in order.

    Rows don't depend on which others are processed along with them, to the last bit.
    """

    def __init__(
        self,
        params: SamplingParams,
        tokenizer: Any,
        prompt_ids: Sequence[int],
        vocab_size: int,
        end_ids: frozenset[int],
        device: torch.device,
    ) -> None:
        """Build what is set in ``params``.

        Raises:
            SamplingError: a parameter can't be honoured with this model.
        """
        model = ModelFacts(tokenizer, prompt_ids, vocab_size, end_ids, device)
        wanted = {PROCESSORS[name] for name in params.processing}
        classes = [kind for kind in dict.fromkeys(PROCESSORS.values()) if kind in wanted]
        self._processors = [made for kind in classes for made in kind.build(params, model)]

    @staticmethod
    def needed(params: SamplingParams) -> bool:
        """Whether any processor is on."""
        return not params.plain_logits

    def commit(self, token: int) -> None:
        """A token of the reply is final."""
        for processor in self._processors:
            processor.commit(token)

    def apply(
        self, logits: Tensor, token_ids: list[int], proposed: Sequence[int] | Tensor
    ) -> Tensor:
        """Process a row ``[V]`` after ``token_ids`` and ``proposed``; unchanged if that fails."""
        if not isinstance(proposed, Tensor):
            proposed = to_device(proposed, logits.device)
        row = self.apply_rows(logits[None], token_ids, proposed, [range(len(proposed))]).rows[0]
        return row.where(row.amax().isfinite(), logits)

    def apply_rows(
        self,
        logits: Tensor,
        token_ids: list[int],
        proposed: Tensor,
        paths: Sequence[Sequence[int]],
    ) -> Processed:
        """Process ``logits [n, V]``; nothing that goes wrong with a row is raised.

        Args:
            logits: The target's, of any float dtype.
            token_ids: The prompt and the committed tokens.
            proposed: ``[K]`` int64 on the logits' device. Read by the host for a grammar only.
            paths: Row j follows ``token_ids`` and ``proposed[i] for i in paths[j]``.
        """
        rows = logits.to(torch.float32, copy=True)
        context = Context(token_ids, proposed, paths, free_to_look(logits))
        for processor in self._processors:
            processor.apply(rows, context)
        for row in context.faults:
            rows[row] = torch.nan
        return Processed(rows, partial(self._fault, logits, context))

    def _fault(self, logits: Tensor, context: Context, row: int) -> SpecstreamError:
        """Why a row has nothing to choose from: its processors once more, one by one."""
        if row in context.faults:
            return context.faults[row]
        rows = logits[row : row + 1].to(torch.float32, copy=True)
        if not bool(rows.amax().isfinite()):
            return _not_finite(row)
        again = replace(context, paths=[context.paths[row]], may_wait=True, faults={})
        names = list[str]()
        for processor in self._processors:
            names.append(processor.name)
            processor.apply(rows, again)
            if again.faults:
                return again.faults[0]
            if not bool((rows > -torch.inf).any()):
                break
        before = f", after {', '.join(names[:-1])}" if len(names) > 1 else ""
        return SamplingError(
            f"no token is left to choose from: {names[-1]} ruled out the last ones{before}; "
            "loosen one of them"
        )
