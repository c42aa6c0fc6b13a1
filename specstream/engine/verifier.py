"""Verifies proposals: turns the target's logits into verdicts."""

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
    """Apply each sequence's logits processors, then its acceptance rule (exact match for keyed noise).

    Returns the verdict on each round of a pass and, for each round, the errors of broken rows of logits
    that the accepted path reaches. ``rule`` decides on sampled drafts that come with probabilities;
    ``predictions`` asks for `Verdict.predictions`.
    """
    sequences, proposals = done.sequences, done.proposals
    # `logits` also has entries of pure prefill, after those of the rounds.
    rounds = zip(sequences, done.logits, proposals, strict=False)
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
