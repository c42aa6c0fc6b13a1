"""The verifier: how many proposed tokens stand, and which token follows them. Pure functions.

Exactness rests on two things: the arithmetic of `specstream.speculation.rules`, and the callers' honesty
about ``probs`` (the distribution that each token was really drawn from). The accepted prefix and the
token after it together have exactly the law of sampling from the target one token at a time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specstream.model.sampling import draw_at, free_to_look, probabilities, uniforms
from specstream.model.transfer import to_device
from specstream.speculation.checking import distributions
from specstream.speculation.proposal import Proposal, Verdict
from specstream.speculation.rules import (
    Acceptance,
    block_rule,
    deterministic_rule,
    ratio_rule,
)
from specstream.speculation.sequential import Rule, walk
from specstream.types import SamplingParams

__all__ = ["Case", "Rule", "match", "verify", "verify_batch"]

_LAWS: dict[Rule, Callable[..., Acceptance]] = {"ratio": ratio_rule, "block": block_rule}


@dataclass(frozen=True, slots=True)
class Case:
    """One request's part of a batch.

    Attributes:
        proposal: A chain of K tokens.
        logits: ``[K + 1, V]`` of the target, processors applied; row j was computed with the first
            j proposed tokens in place. V is one for all cases of a batch.
        params: How a distribution is made from the logits.
        generator: The verifier's noise, independent of the draft's, on the logits' device. Two uniforms
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
    """Verifier one chain; see `Case` for the arguments and `verify_batch` for the rest."""
    return verify_batch([Case(proposal, target_logits, params, generator)], rule=rule)[0]


def verify_batch(cases: Sequence[Case], *, rule: Rule = "block") -> list[Verdict]:
    """Verifier a batch of chains of different lengths; a request's verdict doesn't depend on the others.

    ``rule`` is for drafts that come with probabilities: ``"ratio"`` tests token by token, ``"block"``
    the block as a whole, which never accepts fewer on average. Deterministic drafts and greedy
    requests need no choice. One transfer from the device for the whole batch. On a CPU, where looking
    is free, sampled cases are judged one by one.

    Raises:
        ValueError: the shapes of a case don't fit together, or its proposal is a tree.
    """
    verdicts: dict[int, Verdict] = {}
    noise: dict[int, Tensor] = {}
    greedy = list[int]()
    for index, case in enumerate(cases):
        _check(case)
        free = free_to_look(case.logits)
        if case.params.greedy:
            greedy += [index] * free
            continue
        noise[index] = uniforms(2, case.generator)
        verdict = _walked(case, rule, noise[index]) if free else None
        if verdict is not None:
            verdicts[index] = verdict
    if greedy:
        verdicts.update(zip(greedy, _looked([cases[i] for i in greedy]), strict=True))
    rest = [index for index in range(len(cases)) if index not in verdicts]
    if rest:
        made = _at_once([cases[i] for i in rest], rule, [noise.get(i) for i in rest])
        verdicts.update(zip(rest, made, strict=True))
    return [verdicts[index] for index in range(len(cases))]


def _looked(cases: Sequence[Case]) -> Iterator[Verdict]:
    """The verdicts on greedy cases that may be looked at."""
    rows = [case.logits for case in cases]
    top = (rows[0] if len(rows) == 1 else torch.cat(rows)).max(-1)
    highest, choices = iter(top.values.tolist()), iter(top.indices.tolist())
    for case in cases:
        tokens = case.proposal.tokens.tolist()
        count = len(tokens) + 1
        values = enumerate(itertools.islice(highest, count))
        broken = tuple(row for row, value in values if not math.isfinite(value))
        yield match(tokens, list(itertools.islice(choices, count)), broken)


def _walked(case: Case, rule: Rule, noise: Tensor) -> Verdict | None:
    """The verdict on a sampled case that may be looked at; None if it isn't all numbers."""
    proposal = case.proposal
    tokens = proposal.tokens.tolist()
    target = probabilities(case.logits, case.params)
    outcome = walk(tokens, target, proposal.probs, rule, noise.tolist())
    return None if outcome is None else _verdict(tokens, *outcome)


def _verdict(
    tokens: Sequence[int], accepted: int, following: int, broken: tuple[int, ...] = ()
) -> Verdict:
    emitted = (*tokens[:accepted], following)
    return Verdict(accepted, following, tuple(range(accepted)), emitted, broken)


def _at_once(
    cases: Sequence[Case], rule: Rule, noise: Sequence[Tensor | None]
) -> Iterator[Verdict]:
    """Verdicts by the laws in tensors; ``noise[i]`` is that of a sampled case."""
    outcomes, sound = _outcomes(cases, rule, noise)
    tokens = [case.proposal.tokens for case in cases]
    marks = [case.proposal.sound for case in cases if case.proposal.sound is not None]
    flat = iter(torch.cat([*outcomes, *tokens, *sound, *marks]).tolist())
    chosen = [list(itertools.islice(flat, part.shape[0])) for part in outcomes]
    drafted = [list(itertools.islice(flat, part.shape[0])) for part in tokens]
    broken = [tuple(row for row in range(len(ids) + 1) if not next(flat)) for ids in drafted]
    for case, choices, ids, rows in zip(cases, chosen, drafted, broken, strict=True):
        marked = case.proposal.sound is not None and not all(list(itertools.islice(flat, len(ids))))
        if case.params.greedy:
            verdict = match(ids, choices, rows)
        else:
            verdict = _verdict(ids, choices[0], choices[1], rows)
            marked = marked or not choices[2]
        yield replace(verdict, malformed=True) if marked else verdict


def _outcomes(
    cases: Sequence[Case], rule: Rule, noise: Sequence[Tensor | None]
) -> tuple[list[Tensor], list[Tensor]]:
    """For each case what was chosen, and which rows are numbers.

    Chosen is for a greedy case each row's token; for a sampled one how many stand, what follows, and
    whether all of its q are distributions.
    """
    outcomes, sound = list[Tensor](), list[Tensor]()
    sampled: dict[bool, list[_Sampled]] = {True: [], False: []}
    for index, (case, pair) in enumerate(zip(cases, noise, strict=True)):
        if pair is None:
            # The largest logit is NaN or infinite exactly where there is no choice. (Of equal ones,
            # `max` finds the first, as `argmax` does; that takes seven times as long in bfloat16.)
            top = case.logits.max(-1)
            outcomes.append(top.indices)
            sound.append(top.values.isfinite())
            continue
        target = probabilities(case.logits, case.params)
        numbers = target[:, 0].isfinite()  # a row is NaN all over, or nowhere
        sound.append(numbers)
        # Any law will do in place of none, for the reply can't pass it.
        target = _cleaned(target, numbers, 1.0 / target.shape[-1])
        if case.proposal.length:
            sampled[case.proposal.probs is not None].append(
                _Sampled(index, case.proposal, target, pair)
            )
            outcomes.append(pair)  # a place, filled below
        else:
            token = draw_at(target, pair[1:])
            zero = torch.zeros_like(token)
            outcomes.append(torch.cat([zero, token, zero + 1]))
    for with_probs, members in sampled.items():
        if members:
            drawn = _draw(members, _LAWS[rule] if with_probs else None)
            for member, outcome in zip(members, drawn, strict=True):
                outcomes[member.index] = outcome
    return outcomes, sound


@dataclass(frozen=True, slots=True)
class _Sampled:
    """A sampled chain of K > 0 tokens, its target's law ``[K + 1, V]``, and its two uniforms."""

    index: int
    proposal: Proposal
    target: Tensor
    noise: Tensor


def _draw(cases: Sequence[_Sampled], law_of: Callable[..., Acceptance] | None) -> Tensor:
    """``[B, 3]``: accepted count and next token, drawn from each case's law; and 1 if it is sound."""
    count = max(case.proposal.length for case in cases)
    target = _stacked([_pad(case.target, count + 1) for case in cases])
    tokens = _stacked([_pad(case.proposal.tokens, count) for case in cases])
    lengths = to_device([case.proposal.length for case in cases], target.device)
    whole = torch.ones_like(lengths)
    if law_of is None:
        law = deterministic_rule(tokens, target, lengths)
    else:
        probs = [case.proposal.probs for case in cases]
        draft = _stacked([_pad(q, count) for q in probs if q is not None])
        # A q that is no distribution vouches for nothing: the chain ends before it.
        sound = distributions(draft)
        if any(case.proposal.sound is not None for case in cases):  # nor for a token there is not
            sound &= _stacked([_pad(_marks(case.proposal), count) for case in cases])
        fitting = torch.minimum(lengths, sound.long().cumprod(-1).sum(-1))
        whole, lengths = (fitting == lengths).long(), fitting
        law = law_of(tokens, _cleaned(draft, sound, 0.0), target, lengths)
    noise = _stacked([case.noise for case in cases])
    accepted = draw_at(law.accepted, noise[:, 0])
    rows = law.rows(accepted.unsqueeze(-1)).squeeze(-2)
    return torch.stack([accepted, draw_at(rows, noise[:, 1]), whole], -1)


def _marks(proposal: Proposal) -> Tensor:
    if proposal.sound is None:
        return torch.ones_like(proposal.tokens, dtype=torch.bool)
    return proposal.sound


def _cleaned(rows: Tensor, sound: Tensor, instead: float) -> Tensor:
    """The rows that are sound; ``instead`` all over the others."""
    if free_to_look(rows) and bool(sound.all()):
        return rows
    return rows.where(sound.unsqueeze(-1), instead)


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    return parts[0].unsqueeze(0) if len(parts) == 1 else torch.stack(list(parts))


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
    if case.proposal.tree is not None:
        raise ValueError("this is a tree: see specstream.speculation.tree_rules")


def match(tokens: Sequence[int], choices: Sequence[int], broken: tuple[int, ...]) -> Verdict:
    """The verdict where the target's own choice after each token is known: accept while they agree."""
    n = 0
    while n < len(tokens) and tokens[n] == choices[n]:
        n += 1
    return Verdict(n, choices[n], tuple(range(n)), tuple(choices[: n + 1]), broken)
