"""From the target's logits to verdicts, in either mode."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specstream.config import EngineConfig
from specstream.engine.request import Request
from specstream.errors import ModelBroken
from specstream.spec.match import match_batch
from specstream.spec.proposal import Proposal, Verdict
from specstream.spec.trees import verify_tree
from specstream.spec.verify import Case, verify_batch

__all__ = ["Judge"]

_NO_NUMBERS = "the target's logits are not numbers here: damaged weights, or overflow in its dtype"


class Judge:
    """Applies each request's processors, then the mode's rule."""

    def __init__(self, config: EngineConfig) -> None:
        self._coupled = config.mode == "reproducible"
        self._rule = config.rule

    def __call__(
        self, batch: Sequence[Request], proposals: Sequence[Proposal], logits: Sequence[Tensor]
    ) -> list[Verdict]:
        """Judge one round of a batch; ``logits[i]`` is ``[K_i + 1, V]``.

        A row that is no distribution becomes a fault of its request (`Request.faults`), which counts
        if the reply gets that far.
        """
        cases = []
        for request, proposal, rows in zip(batch, proposals, logits, strict=True):
            rows = request.process_rows(rows, proposal)
            cases.append(Case(proposal, rows, request.params, request.generator))
        if not cases:
            return []
        if self._coupled:
            seeds = [request.seed for request in batch]
            verdicts = match_batch(cases, seeds, [len(request.token_ids) for request in batch])
        else:
            verdicts = self._verify(cases)
        for request, verdict in zip(batch, verdicts, strict=True):
            for row in verdict.broken:
                request.faults.setdefault(row, ModelBroken(_NO_NUMBERS))
        return verdicts

    def _verify(self, cases: Sequence[Case]) -> list[Verdict]:
        """Chains by one call for all of them, trees one by one."""
        if not any(case.proposal.tree for case in cases):
            return verify_batch(cases, rule=self._rule)
        chains = iter(verify_batch([c for c in cases if not c.proposal.tree], rule=self._rule))
        return [verify_tree(case) if case.proposal.tree else next(chains) for case in cases]
