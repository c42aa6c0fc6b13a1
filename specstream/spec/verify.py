"""The judge: how many proposed tokens stand, and which token follows them. Pure functions.

Exactness rests on two things: the arithmetic of `specstream.spec.rules`, and the callers' honesty
about ``probs`` (the distribution that each token was really drawn from). The accepted prefix and the
token after it together have exactly the law of sampling from the target one token at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from specstream.model.sampling import draw_at, probabilities
from specstream.spec.proposal import Proposal, Verdict
from specstream.spec.rules import Law, block_law, deterministic_law, ratio_law
from specstream.types import SamplingParams

__all__ = ["Case", "Rule", "match", "verify", "verify_batch"]

Rule = Literal["ratio", "block"]
_LAWS: dict[Rule, Callable[..., Law]] = {"ratio": ratio_law, "block": block_law}


@dataclass(frozen=True, slots=True)
class Case:
    """One request's part of a batch.

    Attributes:
        proposal: A chain of K tokens.
        logits: ``[K + 1, V]`` of the target, processors applied; row j was computed with the first
            j proposed tokens in place.
        params: How a distribution is made from the logits.
        generator: The judge's noise, independent of the draft's, on the logits' device. Two uniforms
            are taken for a sampled case, none for a greedy one.
    """

    proposal: Proposal
    logits: Tensor
    params: SamplingParams
    generator: torch.Generator


def verify(
    proposal: Proposal,
    target_logits: Tensor,
    params: SamplingParams,
    generator: torch.Generator,
    *,
    rule: Rule = "block",
) -> Verdict:
    """Judge one chain; see `Case` for the arguments and `verify_batch` for the rest."""
    return verify_batch([Case(proposal, target_logits, params, generator)], rule=rule)[0]


def verify_batch(cases: Sequence[Case], *, rule: Rule = "block") -> list[Verdict]:
    """Judge a batch of chains of different lengths; a request's verdict doesn't depend on the others.

    ``rule`` is for drafts that come with probabilities: ``"ratio"`` tests token by token, ``"block"``
    the block as a whole, which never accepts fewer on average. Deterministic drafts and greedy
    requests need no choice. One transfer from the device for the whole batch.

    Raises:
        ValueError: the shapes of a case don't fit together.
    """
    # The largest logit is NaN or infinite exactly where no distribution can be made. (Of equal ones,
    # `max` finds the first, as `argmax` does; that takes seven times as long in bfloat16.)
    tops = [case.logits.max(-1) for case in cases]
    sound = [top.values.isfinite() for top in tops]
    outcomes: list[Tensor | None] = [None] * len(cases)
    sampled: dict[bool, list[int]] = {True: [], False: []}
    for index, case in enumerate(cases):
        _check(case)
        if case.params.greedy:
            outcomes[index] = tops[index].indices
        elif not case.proposal.length:
            outcomes[index] = _plain(_numbers(case, sound[index]))
        else:
            sampled[case.proposal.probs is not None].append(index)
    for with_probs, indices in sampled.items():
        if indices:
            law_of = _LAWS[rule] if with_probs else None
            numbers = [_numbers(cases[i], sound[i]) for i in indices]
            for index, outcome in zip(indices, _draw(numbers, law_of), strict=True):
                outcomes[index] = outcome
    parts = [
        part
        for outcome, case, rows in zip(outcomes, cases, sound, strict=True)
        for part in (outcome, case.proposal.tokens, rows)
        if part is not None
    ]
    flat = iter(torch.cat(parts).tolist())
    verdicts = []
    for case in cases:
        count = case.proposal.length
        outcome_size = count + 1 if case.params.greedy else 2
        chosen = list(itertools.islice(flat, outcome_size))
        tokens = list(itertools.islice(flat, count))
        broken = tuple(row for row in range(count + 1) if not next(flat))
        if case.params.greedy:
            verdicts.append(match(tokens, chosen, broken))
        else:
            accepted, following = chosen
            emitted = (*tokens[:accepted], following)
            verdicts.append(Verdict(accepted, following, tuple(range(accepted)), emitted, broken))
    return verdicts


def match(tokens: Sequence[int], choices: Sequence[int], broken: tuple[int, ...]) -> Verdict:
    """The verdict where the target's own choice after each token is known: accept while they agree."""
    n = 0
    while n < len(tokens) and tokens[n] == choices[n]:
        n += 1
    return Verdict(n, choices[n], tuple(range(n)), tuple(choices[: n + 1]), broken)


def _numbers(case: Case, sound: Tensor) -> Case:
    """A row of no numbers has no law; any will do in its place, for the reply can't pass it."""
    logits = _cleaned(case.logits, sound)
    return case if logits is case.logits else replace(case, logits=logits)


def _cleaned(rows: Tensor, sound: Tensor) -> Tensor:
    """Zeros in place of the rows that are not sound."""
    if rows.device.type == "cpu" and bool(sound.all()):
        return rows  # asking is free here; a GPU would have to be waited for
    return rows.where(sound.unsqueeze(-1), 0.0)


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    return parts[0].unsqueeze(0) if len(parts) == 1 else torch.stack(list(parts))


def _plain(case: Case) -> Tensor:
    """``[2]``: nothing was proposed, so nothing stands; the next token with the noise of any round."""
    token = draw_at(probabilities(case.logits, case.params), _uniforms(case)[1:])
    return torch.cat([torch.zeros_like(token), token])


def _draw(cases: Sequence[Case], law_of: Callable[..., Law] | None) -> Tensor:
    """``[B, 2]``: for each case, accepted count and next token, drawn from its law."""
    count = max(case.proposal.length for case in cases)
    target = _stacked([_pad(probabilities(c.logits, c.params), count + 1) for c in cases])
    tokens = _stacked([_pad(c.proposal.tokens, count) for c in cases])
    lengths = torch.tensor([c.proposal.length for c in cases], device=target.device)
    if law_of is None:
        law = deterministic_law(tokens, target, lengths)
    else:
        probs = [c.proposal.probs for c in cases]
        draft = _stacked([_pad(q, count) for q in probs if q is not None])
        # A q that is no distribution vouches for nothing: the chain ends before it.
        sound = draft.sum(-1).isfinite()
        lengths = torch.minimum(lengths, sound.long().cumprod(-1).sum(-1))
        draft = _cleaned(draft, sound)
        law = law_of(tokens, draft, target, lengths)
    noise = _stacked([_uniforms(case) for case in cases])
    accepted = draw_at(law.accepted, noise[:, 0])
    rows = law.rows(accepted.unsqueeze(-1)).squeeze(-2)
    return torch.stack([accepted, draw_at(rows, noise[:, 1])], -1)


def _uniforms(case: Case) -> Tensor:
    device = case.logits.device
    return torch.rand(2, generator=case.generator, device=device, dtype=torch.float64)


def _pad(rows: Tensor, count: int) -> Tensor:
    missing = count - rows.shape[0]
    return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing else rows


def _check(case: Case) -> None:
    count, shape = case.proposal.length, tuple(case.logits.shape)
    if len(shape) != 2 or shape[0] != count + 1:
        raise ValueError(f"{count} tokens need {count + 1} rows of logits, not {shape}")
    probs = case.proposal.probs
    if probs is not None and tuple(probs.shape) != (count, shape[1]):
        raise ValueError(f"probs must be {(count, shape[1])}, not {tuple(probs.shape)}")
