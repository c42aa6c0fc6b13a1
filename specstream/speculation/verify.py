"""The verifier: how many proposed tokens are accepted, and which token follows them. Pure functions.

Whatever is proposed, the emitted tokens have the distribution of sampling from the target one token at a
time. That rests on `specstream.speculation.rules` and `specstream.speculation.tree_rules`, and on
proposers that return true `Proposal.probs`. There are three kinds of requests:

- Greedy: proposed tokens are accepted while they agree with the target's likeliest token at each row.
- Exact match (`Case.key`): proposed tokens are accepted while they agree with the target's own draws by
  Gumbel-max sampling. As the noise depends on seed and position only, the text is a function of the seed
  and the target, and no proposal can change it.
- Sampled: a rule gives the distribution of the number of accepted tokens; one draw decides that number,
  a second one the token that follows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from specstream.model.noise import gumbel_max
from specstream.model.sampling import draw_at, free_to_look, probabilities, uniforms
from specstream.model.transfer import to_device
from specstream.speculation.checking import distributions
from specstream.speculation.proposal import Proposal, Verdict
from specstream.speculation.rules import Acceptance, block_rule, deterministic_rule, ratio_rule
from specstream.speculation.sequential import (
    Rule,
    follow_choices,
    verify_sequentially,
    verify_tree_sequentially,
)
from specstream.speculation.tree_rules import tree_rule
from specstream.types import SamplingParams

__all__ = ["Case", "Rule", "verify_batch"]

_NUMPY_DTYPES = (torch.float32, torch.float64)  # float types that numpy has, too
_RULES: dict[Rule, Callable[..., Acceptance]] = {"ratio": ratio_rule, "block": block_rule}


@dataclass(frozen=True, slots=True)
class Case:
    """One request's part of a batch.

    Attributes:
        proposal: A chain or tree of K tokens.
        logits: ``[K + 1, V]`` of the target, processors applied: row 0 after the committed tokens, row
            j + 1 after proposed token j on its path. V is the same for all cases of a batch.
        params: The sampling parameters.
        generator: The verifier's noise, independent of the draft's, on the logits' device. A sampled
            case takes two uniforms, any other none.
        key: For exact match the seed, and the absolute position of the token that row 0 decides.
        predictions: Whether the verdict must have predictions.
    """

    proposal: Proposal
    logits: Tensor
    params: SamplingParams
    generator: torch.Generator
    key: tuple[int, int] | None = None
    predictions: bool = False

    @property
    def sampled(self) -> bool:
        """Whether a rule decides what is accepted, rather than agreement with the target's choices."""
        return not self.params.greedy and self.key is None


_Outcome = tuple[Tensor, Tensor, Tensor]
"""The outcome of one case, as three 1-D tensors on the device.

First the last accepted row and the next token (and predictions, if they are wanted) of a sampled case,
or the target's choice at every row of any other; then which rows are finite; then flags that are all
true for a well-formed proposal.
"""


def verify_batch(cases: Sequence[Case], *, rule: Rule = "block") -> list[Verdict]:
    """Verify a batch of chains and trees; a verdict doesn't depend on the other cases.

    The whole batch takes one transfer from the device. On a CPU, where reading is free, cases are
    verified one by one (`specstream.speculation.sequential`).

    Args:
        cases: Requests of any kind, with proposals of any length.
        rule: The rule for sampled chains with probabilities: ``"ratio"`` tests token by token,
            ``"block"`` the block as a whole, which never accepts fewer tokens on average.

    Raises:
        ValueError: the shapes of a case don't fit together.
    """
    verdicts, outcomes = dict[int, Verdict](), dict[int, _Outcome]()
    sampled = dict[int, Tensor]()
    for index, case in enumerate(cases):
        _check(case)
        noise = uniforms(2, case.generator) if case.sampled else None
        verdict = _sequentially(case, rule, noise)
        if verdict is not None:
            verdicts[index] = verdict
        elif noise is None:
            outcomes[index] = _choices(case)
        else:
            sampled[index] = noise
    for index, (drawn, finite, fits) in _sampled(cases, sampled, rule).items():
        if cases[index].predictions:
            drawn = torch.cat([drawn, cases[index].logits.argmax(-1)])
        outcomes[index] = drawn, finite, fits
    verdicts.update(_read(cases, outcomes))
    return [verdicts[index] for index in range(len(cases))]


def _sequentially(case: Case, rule: Rule, noise: Tensor | None) -> Verdict | None:
    """Verify a case on a CPU; None if it has to be verified in tensors.

    That is so on any other device, if a row that matters isn't finite, and if the target's choices at
    rows off the accepted path are wanted as predictions.
    """
    proposal = case.proposal
    if not free_to_look(case.logits) or proposal.sound is not None:
        return None
    tokens = proposal.tokens.tolist()
    if noise is None:
        if case.predictions:
            return None
        found = follow_choices(tokens, proposal.links, partial(_choice, case))
    elif proposal.parents is not None:
        links, rows = proposal.links, partial(_row, case)
        found = verify_tree_sequentially(tokens, links, rows, proposal.probs, noise.tolist())
    else:
        target = probabilities(case.logits, case.params)
        found = verify_sequentially(tokens, target, proposal.probs, rule, noise.tolist())
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


def _choices(case: Case) -> _Outcome:
    """The target's own token at every row, whatever was proposed."""
    # `max` returns the first of equal values, as `argmax` does, in a seventh of its time in bfloat16.
    values, tokens = case.logits.max(-1)
    if case.key is not None and not case.params.greedy:
        seed, first = case.key
        # Row by row, as torch may split a sum over one row among threads but not one over several rows,
        # and the last bits must not depend on how many rows are verified together.
        rows = zip(torch.split(case.logits, 1), case.proposal.paths, strict=True)
        drawn = [
            gumbel_max(probabilities(row, case.params), seed, first + len(path))
            for row, path in rows
        ]
        tokens = torch.cat(drawn)
    return tokens, values.isfinite(), _marks(case.proposal)


def _sampled(cases: Sequence[Case], noise: dict[int, Tensor], rule: Rule) -> dict[int, _Outcome]:
    """Draw from the acceptance distributions; chains with and without probabilities as a batch each."""
    found, groups = dict[int, _Outcome](), dict[bool, list[int]]()
    targets, finite = dict[int, Tensor](), dict[int, Tensor]()
    for index in noise:
        proposal = cases[index].proposal
        target = probabilities(cases[index].logits, cases[index].params)
        finite[index] = target[:, 0].isfinite()  # a row is either all NaN or has no NaN
        # A NaN row is replaced by an arbitrary distribution: the reply can't get past that row.
        targets[index] = target.where(finite[index].unsqueeze(-1), 1.0 / target.shape[-1])
        if proposal.parents is not None:
            chosen, fits = _draw_tree(proposal, targets[index], noise[index])
            found[index] = chosen, finite[index], fits
        else:
            drawn = proposal.probs is not None and proposal.length > 0
            groups.setdefault(drawn, []).append(index)
    for drawn, group in groups.items():
        chains = [cases[i].proposal for i in group]
        rows, uniform = [targets[i] for i in group], torch.stack([noise[i] for i in group])
        each = zip(
            *_draw_chains(chains, rows, uniform, _RULES[rule] if drawn else None), strict=True
        )
        for index, (chosen, fits) in zip(group, each, strict=True):
            found[index] = chosen, finite[index], fits
    return found


def _draw_tree(proposal: Proposal, target: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The last accepted row and the next token, ``[2]``, and flags ``[K]``."""
    draft, fits = proposal.probs, _marks(proposal)
    if draft is not None:
        fits = fits & distributions(draft)
        draft = draft.where(fits.unsqueeze(-1), 0.0)  # a token of probability 0 is never accepted
    acceptance = tree_rule(proposal.tokens, proposal.links, target, draft)
    end = draw_at(acceptance.accepted.unsqueeze(0), noise[:1])
    return torch.cat([end, draw_at(acceptance.rows(end), noise[1:])]), fits


def _draw_chains(
    chains: Sequence[Proposal],
    targets: Sequence[Tensor],
    noise: Tensor,
    rule: Callable[..., Acceptance] | None,
) -> tuple[Tensor, Tensor]:
    """Accepted count and next token, ``[B, 2]``, and flags ``[B, K]``.

    ``rule`` None: the chains are deterministic.
    """
    count = max(chain.length for chain in chains)
    target = torch.stack([_pad(rows, count + 1) for rows in targets])
    tokens = torch.stack([_pad(chain.tokens, count) for chain in chains])
    lengths = to_device([chain.length for chain in chains], target.device)
    fits = torch.stack([_pad(_marks(chain), count, True) for chain in chains])
    if rule is None:
        acceptance = deterministic_rule(tokens, target, lengths)
    else:
        draft = torch.stack([_pad(c.probs, count) for c in chains if c.probs is not None])
        # A chain is cut before the first row that isn't a distribution.
        sound = fits & distributions(draft)
        real = torch.arange(count, device=lengths.device) < lengths.unsqueeze(-1)
        fits = sound | ~real
        lengths = torch.minimum(lengths, sound.long().cumprod(-1).sum(-1))
        acceptance = rule(tokens, draft.where(sound.unsqueeze(-1), 0.0), target, lengths)
    accepted = draw_at(acceptance.accepted, noise[:, 0])
    rows = acceptance.rows(accepted.unsqueeze(-1)).squeeze(-2)
    return torch.stack([accepted, draw_at(rows, noise[:, 1])], -1), fits


def _marks(proposal: Proposal) -> Tensor:
    """``[K]`` bool: which tokens were ids of the vocabulary; all, if the engine marked none."""
    if proposal.sound is None:
        return torch.ones_like(proposal.tokens, dtype=torch.bool)
    return proposal.sound


def _pad(rows: Tensor, count: int, value: float = 0) -> Tensor:
    missing = count - rows.shape[0]
    return torch.cat([rows, rows.new_full((missing, *rows.shape[1:]), value)]) if missing else rows


def _read(cases: Sequence[Case], outcomes: dict[int, _Outcome]) -> dict[int, Verdict]:
    """Make verdicts from outcomes on the device, with one transfer for all of them."""
    if not outcomes:
        return {}
    parts = [part for i, made in outcomes.items() for part in (*made, cases[i].proposal.tokens)]
    flat = iter(torch.cat(parts).tolist())
    lists = iter([list(itertools.islice(flat, part.shape[0])) for part in parts])
    quads = zip(lists, lists, lists, lists, strict=True)
    return {i: _verdict(cases[i], *quad) for i, quad in zip(outcomes, quads, strict=True)}


def _verdict(
    case: Case, chosen: list[int], finite: list[int], fits: list[int], tokens: list[int]
) -> Verdict:
    if case.sampled:
        row, following, *likely = chosen
    else:
        found = follow_choices(tokens, case.proposal.links, lambda row, depth: chosen[row])
        assert found is not None  # every row has a choice
        row, following = found
        likely = chosen if case.predictions else []
    path = case.proposal.path_to(row)
    emitted = (*(tokens[node] for node in path), following)
    broken = tuple(row for row, is_finite in enumerate(finite) if not is_finite)
    malformed = not all(fits)
    return Verdict(len(path), following, path, emitted, broken, malformed, tuple(likely))


def _check(case: Case) -> None:
    count, shape = case.proposal.length, tuple(case.logits.shape)
    if len(shape) != 2 or shape[0] != count + 1:
        raise ValueError(f"{count} tokens need {count + 1} rows of logits, not {shape}")
    probs = case.proposal.probs
    if probs is not None and tuple(probs.shape) != (count, shape[1]):
        raise ValueError(f"probs must be {(count, shape[1])}, not {tuple(probs.shape)}")
