"""Verification in tensors, for a device that the host must not wait for: one transfer a batch.

Cases of one kind share all operations, so their number hardly depends on the size of the batch: greedy
cases, cases by exact match, sampled chains with and without probabilities. Sampled trees are verified
one by one, as each has its own shape. See `specstream.drafting.verify` for what is computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from specstream.drafting.checking import distributions
from specstream.drafting.proposal import Proposal, Verdict
from specstream.drafting.rules import Acceptance, block_rule, deterministic_rule, ratio_rule, tree_rule
from specstream.drafting.sequential import Rule, follow_choices
from specstream.model.numerics import to_device
from specstream.model.tokens.noise import gumbel_max, gumbel_max_of_rows, noise_key
from specstream.model.tokens.sampling import (
    Uniforms,
    draw_at,
    free_to_look,
    probabilities,
    probabilities_of_rows,
)
from specstream.types import SamplingParams

__all__ = ["Case", "verdict_of", "verify_at_once"]


@dataclass(frozen=True, slots=True)
class Case:
    """One request's part of a batch.

    Attributes:
        proposal: A chain or tree of K tokens.
        logits: ``[K + 1, V]`` of the target, processors applied: row 0 after the committed tokens, row
            j + 1 after proposed token j on its path. V is the same for all cases of a batch.
        params: The sampling parameters.
        generator: The verifier's noise, independent of the draft's. A sampled case takes two uniforms,
            any other none.
        key: For exact match the seed, and the absolute position of the token that row 0 decides.
        predictions: Whether the verdict must have predictions.
    """

    proposal: Proposal
    logits: Tensor
    params: SamplingParams
    generator: torch.Generator | Uniforms
    key: tuple[int, int] | None = None
    predictions: bool = False

    @property
    def sampled(self) -> bool:
        """Whether a rule decides what is accepted, rather than agreement with the target's choices."""
        return not self.params.greedy and self.key is None


_RULES: dict[Rule, Callable[..., Acceptance]] = {"ratio": ratio_rule, "block": block_rule}

_Kind = Literal["greedy", "exact match", "drawn", "deterministic", "tree"]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of a group of cases, as int64 tensors on the device.

    Attributes:
        cases: The cases' numbers in the batch.
        ends: ``[cases, 2]``: the last accepted row and the next token of each sampled case.
        choices: ``[rows]``: the target's choice at every row; None for sampled cases, unless one of them
            wants predictions.
        finite: ``[rows]``: which rows are finite.
        fits: ``[tokens]``: flags that are all true for well-formed proposals; None: all are.
        tokens: ``[tokens]``: the proposed tokens.
    """

    cases: Sequence[int]
    ends: Tensor | None
    choices: Tensor | None
    finite: Tensor
    fits: Tensor | None
    tokens: Tensor

    @property
    def parts(self) -> list[Tensor | None]:
        return [self.ends, self.choices, self.finite, self.fits, self.tokens]


def verify_at_once(cases: Sequence[Case], noise: Sequence[Sequence[float]], rule: Rule) -> list[Verdict]:
    """Verify cases on their device; ``noise`` holds two uniforms for each sampled case."""
    groups = dict[_Kind, list[int]]()
    for index, case in enumerate(cases):
        groups.setdefault(_kind(case), []).append(index)
    outcomes = list[_Outcome]()
    for kind, numbers in groups.items():
        some = [cases[number] for number in numbers]
        if kind in ("greedy", "exact match"):
            outcomes.append(_choices(some, numbers, keyed=kind == "exact match"))
            continue
        uniform = [noise[number] for number in numbers]
        if kind == "tree":
            each = zip(some, numbers, uniform, strict=True)
            outcomes += [_tree(*one) for one in each]
        else:
            outcomes.append(_chains(some, numbers, uniform, _RULES[rule] if kind == "drawn" else None))
    return _read(cases, outcomes)


def _kind(case: Case) -> _Kind:
    if not case.sampled:
        return "greedy" if case.params.greedy else "exact match"
    proposal = case.proposal
    if proposal.parents is not None:
        return "tree"
    return "drawn" if proposal.probs is not None and proposal.length else "deterministic"


def _choices(cases: Sequence[Case], numbers: Sequence[int], *, keyed: bool) -> _Outcome:
    """The target's own token at every row, whatever was proposed."""
    rows = joined([case.logits for case in cases])
    if keyed and free_to_look(rows):
        # On a CPU row by row: torch may split the sum over a row alone among threads, but not the sum
        # over one of several rows, and exact match needs the bits that single rows give.
        found = torch.cat(
            [
                gumbel_max(probabilities(row, case.params), *place)
                for case in cases
                for row, place in zip(torch.split(case.logits, 1), _places(case), strict=True)
            ]
        )
        finite = rows.amax(-1).isfinite()
    elif keyed:
        probs = _distributions_of(cases, rows)
        keys = [noise_key(*place) for case in cases for place in _places(case)]
        found = gumbel_max_of_rows(probs, to_device(keys, rows.device))
        finite = probs[:, 0] == probs[:, 0]
    else:
        # `max` returns the first of equal values, as `argmax` does, in a seventh of its time.
        values, found = rows.max(-1)
        finite = values.isfinite()
    return _Outcome(numbers, None, found, finite.long(), _marks(cases), _tokens(cases))


def _places(case: Case) -> list[tuple[int, int]]:
    """The seed and the position of every row."""
    assert case.key is not None
    seed, first = case.key
    return [(seed, first + len(path)) for path in case.proposal.paths]


def _distributions_of(cases: Sequence[Case], rows: Tensor) -> Tensor:
    params = [case.params for case in cases for _ in range(case.proposal.length + 1)]
    if rows.shape[0] > 1:
        return probabilities_of_rows(rows, params)
    # torch sums one row alone in another order than one of several, and exact match needs equal bits.
    return probabilities_of_rows(rows.expand(2, -1), params * 2)[:1]


def _target(cases: Sequence[Case]) -> tuple[Tensor, Tensor]:
    """The target's distributions ``[rows, V]`` of sampled cases, and which rows are finite."""
    target = _distributions_of(cases, joined([case.logits for case in cases]))
    finite = target[:, 0] == target[:, 0]  # a row is either all NaN or has no NaN
    # A NaN row is replaced by an arbitrary distribution: the reply can't get past that row.
    return target.where(finite.unsqueeze(-1), 1.0 / target.shape[-1]), finite


def _tree(case: Case, number: int, uniform: Sequence[float]) -> _Outcome:
    """Draw a sampled tree's last accepted row and next token from its acceptance."""
    proposal, (target, finite) = case.proposal, _target([case])
    noise = to_device(uniform, target.device, torch.float64)
    draft, fits = proposal.probs, _marks([case])
    if draft is not None:
        sound = distributions(draft)
        sound = sound if proposal.sound is None else sound & proposal.sound
        fits = sound.long()
        draft = draft.where(sound.unsqueeze(-1), 0.0)  # a token of probability 0 is never accepted
    acceptance = tree_rule(proposal.tokens, proposal.links, target, draft)
    end = draw_at(acceptance.accepted.unsqueeze(0), noise[:1])
    ends = torch.cat([end, draw_at(acceptance.rows(end), noise[1:])])
    return _Outcome([number], ends, _likely([case]), finite.long(), fits, proposal.tokens)


def _chains(
    cases: Sequence[Case],
    numbers: Sequence[int],
    uniform: Sequence[Sequence[float]],
    rule: Callable[..., Acceptance] | None,
) -> _Outcome:
    """Draw chains' accepted counts and next tokens; ``rule`` None: the chains are deterministic."""
    target, finite = _target(cases)
    device, chains = target.device, [case.proposal for case in cases]
    counts = [chain.length for chain in chains]
    most, tokens = max(counts), _tokens(cases)
    wide = _wide(target, [count + 1 for count in counts])
    marks, drafted = _marks(cases), _wide(tokens, counts)
    lengths = to_device(counts, device)
    fits = marks
    if rule is None:
        acceptance = deterministic_rule(drafted, wide, lengths)
    else:
        rows = joined([chain.probs for chain in chains if chain.probs is not None])
        # A chain is cut before the first row that isn't a distribution.
        sound = distributions(rows)
        sound = sound if marks is None else sound & (marks > 0)
        fits = sound.long()
        draft = _wide(rows.where(sound.unsqueeze(-1), 0.0), counts)
        cut = torch.minimum(lengths, _wide(fits, counts).cumprod(-1).sum(-1))
        acceptance = rule(drafted, draft, wide, cut)
    noise = to_device(list(zip(*uniform, strict=True)), device, torch.float64)
    accepted = draw_at(acceptance.accepted, noise[0])
    following = acceptance.rows(accepted.unsqueeze(-1)).squeeze(-2) if most else wide[:, 0]
    ends = torch.stack([accepted, draw_at(following, noise[1])], -1)
    return _Outcome(numbers, ends, _likely(cases), finite.long(), fits, tokens)


def _likely(cases: Sequence[Case]) -> Tensor | None:
    """The likeliest token of every row, if one of the cases wants predictions."""
    if not any(case.predictions for case in cases):
        return None
    return joined([case.logits for case in cases]).argmax(-1)


def _tokens(cases: Sequence[Case]) -> Tensor:
    return joined([case.proposal.tokens for case in cases])


def _marks(cases: Sequence[Case]) -> Tensor | None:
    """Which tokens were ids of the vocabulary ``[tokens]``; None: the engine marked none."""
    marks = [case.proposal.sound for case in cases]
    if all(mark is None for mark in marks):
        return None
    each = zip(marks, cases, strict=True)
    return joined([_all(case.proposal) if mark is None else mark for mark, case in each]).long()


def _all(proposal: Proposal) -> Tensor:
    return torch.ones_like(proposal.tokens, dtype=torch.bool)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate; a single tensor is returned as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _wide(rows: Tensor, counts: Sequence[int]) -> Tensor:
    """Rows ``[sum(counts), …]`` as ``[B, max(counts), …]``; a short sequence is filled with any row."""
    most = max(counts)
    if most * len(counts) == rows.shape[0]:
        return rows.view(len(counts), most, *rows.shape[1:])
    starts, last = itertools.accumulate(counts, initial=0), rows.shape[0] - 1
    index = [
        [min(start + step, last) for step in range(most)]
        for start, _ in zip(starts, counts, strict=False)
    ]
    found = rows.index_select(0, to_device(index, rows.device).view(-1))
    return found.view(len(counts), most, *rows.shape[1:])


def _read(cases: Sequence[Case], outcomes: Sequence[_Outcome]) -> list[Verdict]:
    """Make verdicts from outcomes on the device, with one transfer for all of them."""
    parts = [part.reshape(-1) for made in outcomes for part in made.parts if part is not None]
    flat, at = joined(parts).tolist(), 0
    verdicts = dict[int, Verdict]()
    for made in outcomes:
        told = list[list[int]]()
        for part in made.parts:
            size = 0 if part is None else part.numel()
            told.append(flat[at : at + size])
            at += size
        ends, choices, finite, fits, tokens = told
        sound, row, token = all(finite) and all(fits), 0, 0
        for index, number in enumerate(made.cases):
            case = cases[number]
            count = case.proposal.length
            rows, drafted = slice(row, row + count + 1), slice(token, token + count)
            row, token = row + count + 1, token + count
            end = (ends[2 * index], ends[2 * index + 1]) if ends else None
            faults = None if sound else (finite[rows], fits[drafted])
            verdicts[number] = verdict_of(case, end, choices[rows], tokens[drafted], faults)
    return [verdicts[number] for number in range(len(cases))]


def verdict_of(
    case: Case,
    end: tuple[int, int] | None,
    choices: list[int],
    tokens: list[int],
    faults: tuple[list[int], list[int]] | None,
) -> Verdict:
    """Make a verdict from what was read.

    Args:
        case: The case.
        end: The last accepted row and the next token of a sampled case.
        choices: The target's choice at every row of any other; also the predictions.
        tokens: The proposed tokens.
        faults: Which rows are finite, and which tokens are sound; None: all.
    """
    proposal = case.proposal
    if end is None:
        found = follow_choices(tokens, proposal.links, lambda row, depth: choices[row])
        assert found is not None  # every row has a choice
        end = found
    row, following = end
    path = proposal.path_to(row)
    chain = proposal.parents is None
    taken = tokens[:row] if chain else [tokens[node] for node in path]
    broken: tuple[int, ...] = ()
    malformed = False
    if faults is not None:
        broken = tuple(row for row, good in enumerate(faults[0]) if not good)
        malformed = not all(faults[1])
    likely = tuple(choices) if case.predictions else ()
    return Verdict(len(path), following, path, (*taken, following), broken, malformed, likely)
