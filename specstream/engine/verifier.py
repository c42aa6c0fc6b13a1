"""From the target's logits to verdicts."""

from __future__ import annotations

from dataclasses import replace

import torch

from specstream.engine.prefill import Pass
from specstream.engine.sequence import Sequence
from specstream.errors import ModelBroken, SpecstreamError
from specstream.model.sampling import free_to_look
from specstream.speculation.exact_match import match_batch
from specstream.speculation.proposal import Proposal, Verdict
from specstream.speculation.sequential import Rule
from specstream.speculation.tree_rules import match_tree, verify_tree
from specstream.speculation.verify import Case, verify_batch

__all__ = ["verify"]

_NOT_FINITE = "the target's logits are not numbers here: damaged weights, or overflow in its dtype"


def verify(done: Pass, rule: Rule) -> tuple[list[Verdict], list[dict[int, SpecstreamError]]]:
    """Apply each sequence's processors, then its rule: exact match where its noise is keyed.

    Returns verdicts on the rounds of a pass and, for each, errors by row of logits. An error counts only
    if the reply gets to its row. ``rule`` is for drafts that come with probabilities.
    """
    sequences, proposals = done.sequences, done.proposals
    cases, faults = list[Case](), list[dict[int, SpecstreamError]]()
    contexts = _contexts(sequences, proposals)
    for index, (sequence, proposal) in enumerate(zip(sequences, proposals, strict=True)):
        rows, broken = sequence.process_rows(done.logits[index], contexts.get(index, []))
        cases.append(Case(proposal, rows, sequence.params, sequence.noise.verifier))
        faults.append(broken)
    made, keyed, free = dict[int, Verdict](), list[int](), list[int]()
    for index, (sequence, case) in enumerate(zip(sequences, cases, strict=True)):
        noise = sequence.noise
        if case.proposal.tree is None:
            (keyed if noise.keyed else free).append(index)
        elif noise.keyed:
            made[index] = match_tree(case, noise.seed, len(sequence.token_ids))
        else:
            made[index] = verify_tree(case)
    if keyed:
        seeds = [sequences[i].noise.seed for i in keyed]
        first = [len(sequences[i].token_ids) for i in keyed]
        matched = match_batch([cases[i] for i in keyed], seeds, first)
        made.update(zip(keyed, matched, strict=True))
    if free:
        judged = verify_batch([cases[i] for i in free], rule=rule)
        made.update(zip(free, judged, strict=True))
    verdicts = [made[index] for index in range(len(cases))]
    for verdict, broken in zip(verdicts, faults, strict=True):
        for row in verdict.broken:
            broken.setdefault(row, ModelBroken(_NOT_FINITE))
    return verdicts, faults


def _contexts(sequences: list[Sequence], proposals: list[Proposal]) -> dict[int, list[list[int]]]:
    """The proposed tokens before each row, where processors want them: one transfer for all."""
    found = {i: proposals[i] for i, s in enumerate(sequences) if s.processors is not None}
    if len(found) > 1 and not free_to_look(proposals[0].tokens):
        tokens = torch.cat([proposal.tokens for proposal in found.values()]).cpu()
        parts = torch.split(tokens, [proposal.length for proposal in found.values()])
        pairs = zip(found.items(), parts, strict=True)
        found = {i: replace(proposal, tokens=part) for (i, proposal), part in pairs}
    return {i: proposal.contexts() for i, proposal in found.items()}
