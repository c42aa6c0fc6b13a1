"""From the target's logits to verdicts."""

from __future__ import annotations

from specstream.engine.prefill import Pass
from specstream.errors import SpecstreamError
from specstream.speculation.proposal import Verdict
from specstream.speculation.sequential import Rule
from specstream.speculation.verify import Case, verify_batch

__all__ = ["verify"]


def verify(
    done: Pass, rule: Rule, *, predictions: bool = False
) -> tuple[list[Verdict], list[dict[int, SpecstreamError]]]:
    """Apply each sequence's processors, then its rule: exact match where its noise is keyed.

    Returns verdicts on the rounds of a pass and, for each, errors by row of logits where the reply
    gets there. ``rule`` is for sampled drafts that come with probabilities; ``predictions`` asks for
    `Verdict.predictions`.
    """
    sequences, proposals = done.sequences, done.proposals
    rounds = zip(sequences, done.logits, proposals, strict=False)  # prefills have no round
    processed = [sequence.process_rows(logits, drafted) for sequence, logits, drafted in rounds]
    cases = []
    for sequence, drafted, rows in zip(sequences, proposals, processed, strict=True):
        noise = sequence.noise
        key = (noise.seed, len(sequence.token_ids)) if noise.keyed else None
        cases.append(Case(drafted, rows.rows, sequence.params, noise.verifier, key, predictions))
    verdicts = verify_batch(cases, rule=rule)
    faults = []
    for verdict, rows in zip(verdicts, processed, strict=True):
        reached = {0, *(node + 1 for node in verdict.path)}
        faults.append({row: rows.fault(row) for row in verdict.broken if row in reached})
    return verdicts, faults
