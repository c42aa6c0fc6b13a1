"""From the target's logits to verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specstream.config import EngineConfig
from specstream.engine.request import Request
from specstream.errors import ModelBroken
from specstream.speculation.exact_match import match_batch
from specstream.speculation.proposal import Proposal, Verdict
from specstream.speculation.tree_rules import match_tree, verify_tree
from specstream.speculation.verify import Case, verify_batch

__all__ = ["Verifier"]

_NO_NUMBERS = "the target's logits are not numbers here: damaged weights, or overflow in its dtype"


class Verifier:
    """Applies each request's processors, then its rule: exact match where its noise is keyed."""

    def __init__(self, config: EngineConfig) -> None:
        self._rule = config.rule

    def __call__(
        self, batch: Sequence[Request], proposals: Sequence[Proposal], logits: Sequence[Tensor]
    ) -> list[Verdict]:
        """Verifier one round of a batch; ``logits[i]`` is ``[K_i + 1, V]``.

        A row that is no distribution becomes a fault of its request (`Request.faults`), which counts
        if the reply gets that far.
        """
        cases = []
        for request, proposal, rows in zip(batch, proposals, logits, strict=True):
            rows = request.process_rows(rows, proposal)
            cases.append(Case(proposal, rows, request.params, request.generator))
        trees = {i for i, case in enumerate(cases) if case.proposal.tree is not None}
        keyed = [i for i, request in enumerate(batch) if request.keyed and i not in trees]
        free = [i for i, request in enumerate(batch) if not request.keyed and i not in trees]
        made = dict[int, Verdict]()
        for index in trees:
            request, case = batch[index], cases[index]
            made[index] = (
                match_tree(case, request.seed, len(request.token_ids))
                if request.keyed
                else verify_tree(case)
            )
        if keyed:
            seeds = [batch[i].seed for i in keyed]
            first = [len(batch[i].token_ids) for i in keyed]
            made.update(
                zip(keyed, match_batch([cases[i] for i in keyed], seeds, first), strict=True)
            )
        if free:
            made.update(
                zip(free, verify_batch([cases[i] for i in free], rule=self._rule), strict=True)
            )
        verdicts = [made[index] for index in range(len(batch))]
        for request, verdict in zip(batch, verdicts, strict=True):
            for row in verdict.broken:
                request.faults.setdefault(row, ModelBroken(_NO_NUMBERS))
        return verdicts
