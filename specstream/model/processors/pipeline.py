"""Applies all processors of one request, with the right context for every proposed position.

A row follows the committed tokens *and the proposed tokens before it*: exactly these are the context
that a processor must see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from specstream.errors import ModelBroken, SamplingError, SpecstreamError
from specstream.model.processors.base import Context, ModelFacts
from specstream.model.processors.parameters import PROCESSORS
from specstream.model.sampling import free_to_look
from specstream.model.transfer import to_device
from specstream.params import SamplingParams

__all__ = ["LogitsPipeline", "Processed"]


def _not_finite(row: int) -> SpecstreamError:
    return ModelBroken(
        "the target's logits are not numbers: damaged weights, or overflow in its dtype"
    )


@dataclass(frozen=True, slots=True)
class Processed:
    """Processed logits, ready for verification.

    Attributes:
        rows: ``[n, V]``. A row that could not be processed holds NaN, or nothing but -inf.
        fault: Returns the error of such a row. Call it for rows that the reply reaches, and before the
            target's next pass: it may process the row again.
    """

    rows: Tensor
    fault: Callable[[int], SpecstreamError] = _not_finite


class LogitsPipeline:
    """The processors of one request. A row's result doesn't depend on other rows, to the last bit."""

    def __init__(self, params: SamplingParams, model: ModelFacts) -> None:
        """Make the processors of the parameters that are set.

        Raises:
            SamplingError: this model can't honour a parameter.
        """
        wanted = {PROCESSORS[name] for name in params.processing}
        makers = [make for make in dict.fromkeys(PROCESSORS.values()) if make in wanted]
        self._processors = [made for make in makers for made in make(params, model)]
        self._committed = to_device([], model.device)

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
        """Return ``logits [n, V]``, processed. Errors of single rows are not raised: see `Processed`.

        Args:
            logits: The target's logits, of any float dtype.
            token_ids: The prompt and the committed tokens: those of the last call and maybe more.
            proposed: ``[K]`` int64 on the logits' device. The host reads it for a grammar only.
            paths: Row j follows ``token_ids`` and ``proposed[i] for i in paths[j]``.
        """
        if new := token_ids[len(self._committed) :]:
            self._committed = torch.cat([self._committed, to_device(new, logits.device)])
        rows = logits.to(torch.float32, copy=True)
        context = Context(token_ids, self._committed, proposed, paths, free_to_look(logits))
        for processor in self._processors:
            processor.apply(rows, context)
        for row in context.faults:
            rows[row] = torch.nan
        return Processed(rows, partial(self._fault, logits, context))

    def _fault(self, logits: Tensor, context: Context, row: int) -> SpecstreamError:
        """Find why a row has no token to choose, by applying the processors again one by one."""
        if row in context.faults:
            return context.faults[row]
        rows = logits[row : row + 1].to(torch.float32, copy=True)
        if not rows.amax().isfinite():
            return _not_finite(row)
        again = replace(context, paths=[context.paths[row]], may_wait=True, faults={})
        names = list[str]()
        for processor in self._processors:
            names.append(processor.name)
            processor.apply(rows, again)
            if again.faults:
                return again.faults[0]
            if not (rows > -torch.inf).any():
                break
        before = f", after {', '.join(names[:-1])}" if len(names) > 1 else ""
        return SamplingError(
            f"no token is left to choose from: {names[-1]} ruled out the last ones{before}; "
            "loosen one of them"
        )
