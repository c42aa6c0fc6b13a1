"""Exact match: the target draws its own token at every position; a drafted one stands if it is that.

Lossless for any draft and any sampler, as long as the target's draw doesn't depend on the draft. With
noise that is keyed by (seed, position) it does not depend on the *block* either: the reply is then a
fixed function of the seed and the target.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch

from specstream.model.noise import gumbel_max
from specstream.model.sampling import probabilities
from specstream.speculation.proposal import Verdict
from specstream.speculation.verify import Case, match

__all__ = ["match_batch"]


def match_batch(cases: list[Case], seeds: list[int], first: list[int]) -> list[Verdict]:
    """Verifier chains by position-keyed exact match.

    Args:
        cases: As for `verify_batch`; their generators are not used.
        seeds: Each request's seed.
        first: Absolute position of the token that each case's row 0 decides.

    Returns:
        Verdicts; one transfer from the device for the whole batch.
    """
    parts = []
    for case, seed, position in zip(cases, seeds, first, strict=True):
        if case.params.greedy:
            parts.append(case.logits.max(-1).indices)
        else:
            # Row by row: a sum over one row may be split among threads, over several it is not, and
            # the last bits must not depend on how many rows are judged together.
            for offset, row in enumerate(torch.split(case.logits, 1)):
                parts.append(gumbel_max(probabilities(row, case.params), seed, position + offset))
        parts += [case.proposal.tokens, case.logits.amax(-1).isfinite()]
        if case.proposal.sound is not None:
            parts.append(case.proposal.sound)
    flat = iter(torch.cat(parts).tolist())
    verdicts = []
    for case in cases:
        count = case.proposal.length
        choices = list(itertools.islice(flat, count + 1))
        tokens = list(itertools.islice(flat, count))
        broken = tuple(row for row in range(count + 1) if not next(flat))
        verdict = match(tokens, choices, broken)
        if case.proposal.sound is not None and not all(list(itertools.islice(flat, count))):
            verdict = replace(verdict, malformed=True)
        verdicts.append(verdict)
    return verdicts
