"""From the target's logits to verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specstream.config import EngineConfig
from specstream.engine.request import Request
from specstream.model.processors import Processed
from specstream.speculation.proposal import Proposal, Verdict
from specstream.speculation.verify import Case, verify_batch

__all__ = ["Verifier"]


class Verifier:
    """Applies each request's processors, then its rule: exact match where its noise is keyed."""

    def __init__(self, config: EngineConfig) -> None:
        self._rule = config.rule

    def __call__(
        self, batch: Sequence[Request], proposals: Sequence[Proposal], logits: Sequence[Tensor]
    ) -> list[Verdict]:
        """Verify one round of a batch; ``logits[i]`` is ``[K_i + 1, V]``.

        A row that can't be drawn from becomes a fault of its request (`Request.faults`) if the reply
        gets that far.
        """
        cases, processed = list[Case](), list[Processed]()
        for request, proposal, rows in zip(batch, proposals, logits, strict=True):
            processed.append(request.process_rows(rows, proposal))
            key = (request.seed, len(request.token_ids)) if request.keyed else None
            rows = processed[-1].rows
            cases.append(Case(proposal, rows, request.params, request.generator, key))
        verdicts = verify_batch(cases, rule=self._rule)
        for request, verdict, done in zip(batch, verdicts, processed, strict=True):
            reached = {0, *(node + 1 for node in verdict.path)}
            request.faults = {row: done.fault(row) for row in verdict.broken if row in reached}
        return verdicts
