"""The verifier: how many proposed tokens are accepted, and which token follows them. Pure functions.

Whatever is proposed, the emitted tokens have the distribution of sampling from the target one token at a
time. That rests on `specstream.drafting.rules`, and on proposers that return true `Proposal.probs`.
There are three kinds of requests:

- Greedy: proposed tokens are accepted while they agree with the target's likeliest token at each row.
- Exact match (`Case.key`): proposed tokens are accepted while they agree with the target's own draws by
  Gumbel-max sampling. As the noise depends on seed and position only, the text is a function of the seed
  and the target, and no proposal can change it.
- Sampled: a rule gives the distribution of the number of accepted tokens; one draw decides that number,
  a second one the token that follows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from specstream.drafting.batched import Case, verify_at_once
from specstream.drafting.proposal import Verdict
from specstream.drafting.sequential import (
    Rule,
    follow_choices,
    verify_sequentially,
    verify_tree_sequentially,
)
from specstream.model.tokens.noise import gumbel_max
from specstream.model.tokens.sampling import free_to_look, probabilities, uniforms

__all__ = ["Case", "Rule", "verify_batch"]

_NUMPY_DTYPES = (torch.float32, torch.float64)  # float types that numpy has, too


def verify_batch(cases: Sequence[Case], *, rule: Rule = "block") -> list[Verdict]:
    """Verify a batch of chains and trees; a verdict doesn't depend on the other cases.

    The batch takes one transfer from the device (`specstream.drafting.batched`). On a CPU, where
    reading is free, cases are verified one by one (`specstream.drafting.sequential`).

    Args:
        cases: Requests of any kind, with proposals of any length.
        rule: The rule for sampled chains with probabilities: ``"ratio"`` tests token by token,
            ``"block"`` the block as a whole, which never accepts fewer tokens on average.

    Raises:
        ValueError: the shapes of a case don't fit together.
    """
    found, noise = list[Verdict | None](), list[list[float]]()
    for case in cases:
        _check(case)
        noise.append(uniforms(2, case.generator) if case.sampled else [])
        found.append(_sequentially(case, rule, noise[-1]))
    left = [index for index, verdict in enumerate(found) if verdict is None]
    if left:
        at_once = verify_at_once([cases[i] for i in left], [noise[i] for i in left], rule)
        for index, verdict in zip(left, at_once, strict=True):
            found[index] = verdict
    return [verdict for verdict in found if verdict is not None]


def _sequentially(case: Case, rule: Rule, noise: list[float]) -> Verdict | None:
    """Verify a case on a CPU; None if it has to be verified in tensors.

    That is so on any other device, if a row that matters isn't finite, and if the target's choices at
    rows off the accepted path are wanted as predictions.
    """
    proposal = case.proposal
    if not free_to_look(case.logits) or proposal.sound is not None:
        return None
    tokens = proposal.tokens.tolist()
    if not case.sampled:
        if case.predictions:
            return None
        found = follow_choices(tokens, proposal.links, partial(_choice, case))
    elif proposal.parents is not None:
        links, rows = proposal.links, partial(_row, case)
        found = verify_tree_sequentially(tokens, links, rows, proposal.probs, noise)
    else:
        target = probabilities(case.logits, case.params)
        found = verify_sequentially(tokens, target, proposal.probs, rule, noise)
    if found is None:
        return None
    path = proposal.path_to(found[0])
    likely = tuple(case.logits.argmax(-1).tolist()) if case.predictions else ()
    emitted = (*(tokens[node] for node in path), found[1])
    return Verdict(len(path), found[1], path, emitted, predictions=likely)


def _row(case: Case, row: int) -> Tensor:
    return probabilities(case.logits[row], case.params)


def _choice(case: Case, row: int, depth: int) -> int | None:
    """The target's token at a row, ``depth`` tokens into the proposal; None: the row isn't finite."""
    logits = case.logits[row]
    # numpy's argmax takes a tenth of the time of torch's; both return the first of equal values.
    values = (logits if logits.dtype in _NUMPY_DTYPES else logits.float()).numpy()
    best = int(values.argmax())
    if not math.isfinite(values[best]):
        return None
    if case.key is None or case.params.greedy:
        return best
    seed, first = case.key
    return int(gumbel_max(_row(case, row).unsqueeze(0), seed, first + depth))


def _check(case: Case) -> None:
    count, shape = case.proposal.length, tuple(case.logits.shape)
    if len(shape) != 2 or shape[0] != count + 1:
        raise ValueError(f"{count} tokens need {count + 1} rows of logits, not {shape}")
    probs = case.proposal.probs
    if probs is not None and tuple(probs.shape) != (count, shape[1]):
        raise ValueError(f"probs must be {(count, shape[1])}, not {tuple(probs.shape)}")
