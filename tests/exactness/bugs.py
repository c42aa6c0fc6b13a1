"""Planted bugs: what went wrong in other systems, put in at the engine's real seams.

A test of exactness is worth as much as the mistakes that it finds. Each of these has shipped
somewhere; each must be rejected at p < 1e-6, and the same cell without it must pass.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from specstream.bench.exactness.enumeration import GTest
from specstream.drafting.chain import Drafting, proposals
from specstream.drafting.proposal import Proposal, Proposer, SpecRequest, Verdict
from specstream.drafting.rules import Acceptance, block_rule, ratio_rule
from specstream.drafting.verify import Case
from specstream.engine.core import request as sequence
from specstream.model.tokens.noise import gumbel_max
from specstream.model.tokens.processors import Processed
from specstream.model.tokens.sampling import draw, draw_at, probabilities, uniforms
from specstream.types import SamplingParams
from tests.exactness.cells import SURE, Cell, run_cell

__all__ = ["BUGS", "HARMLESS", "Bug", "run_bug", "take_with_a_wrong_q"]

_SMALL = 3  # the draft of a sub-vocabulary knows the first tokens only


class Meddling:
    """A proposer between the engine and another one; the base of the lies below."""

    name = "meddling"

    def __init__(self, inner: Proposer) -> None:
        self.inner = inner
        self.capabilities = inner.capabilities

    def disguise(self, request: SpecRequest) -> SpecRequest:
        """What the inner proposer sees of a request."""
        return request

    def edit(self, request: SpecRequest, proposal: Proposal) -> Proposal:
        """What the engine sees of a proposal."""
        return proposal

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        """The inner proposer's, meddled with."""
        made = self.inner.propose([self.disguise(r) for r in requests], budget)
        return [
            self.edit(r, p) if p.length and p.probs is not None else p
            for r, p in zip(requests, made, strict=True)
        ]

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        """Passed on."""
        self.inner.observe(requests, verdicts)

    def release(self, slot: int) -> None:
        """Passed on."""
        self.inner.release(slot)


class _Drawing:
    """A request that draws in another way."""

    def __init__(self, request: Any, how: Callable[[Tensor, int], Tensor]) -> None:
        self._request = request
        self.draw = how

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


class ArgmaxDraft(Meddling):
    """Drafts the most likely token but reports q as if it had been drawn."""

    def disguise(self, request: SpecRequest) -> Any:
        """Takes the maximum."""
        return _Drawing(request, lambda probs, position: probs.argmax(-1))


class DropUnsure(Meddling):
    """Looks at a drafted token and drops it, and what follows, if its probability is low."""

    def edit(self, request: SpecRequest, proposal: Proposal) -> Proposal:
        """Cut before the first unsure token."""
        assert proposal.probs is not None
        sure = proposal.probs.gather(1, proposal.tokens.unsqueeze(1)).squeeze(1) > 0.35
        kept = int(sure.long().cumprod(0).sum())
        return Proposal(proposal.tokens[:kept], proposal.probs[:kept])


class SharedNoise(Meddling):
    """Draws with the very noise that the verifier is about to use."""

    def disguise(self, request: Any) -> Any:
        """A copy of the verifier's generator, at its present state."""
        twin = request.noise.verifier.twin()
        return _Drawing(request, lambda probs, position: draw(probs, twin))


class ShiftedRows(Meddling):
    """Reports each q a position late."""

    def edit(self, request: SpecRequest, proposal: Proposal) -> Proposal:
        """Roll the rows."""
        assert proposal.probs is not None
        return replace(proposal, probs=proposal.probs.roll(1, 0))


class StaleRow(Meddling):
    """After a full acceptance, reports the last round's last row for the first token."""

    def __init__(self, inner: Proposer) -> None:
        super().__init__(inner)
        self._last: dict[int, Tensor] = {}
        self._stale: dict[int, Tensor] = {}

    def edit(self, request: SpecRequest, proposal: Proposal) -> Proposal:
        """Put the stale row in, if there is one."""
        assert proposal.probs is not None
        self._last[request.id] = proposal.probs[-1]
        stale = self._stale.pop(request.id, None)
        if stale is None:
            return proposal
        return replace(proposal, probs=torch.cat([stale.unsqueeze(0), proposal.probs[1:]]))

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        """Note who was accepted in full."""
        for request, verdict in zip(requests, verdicts, strict=True):
            row = self._last.pop(request.id, None)
            if row is not None and verdict.accepted:
                self._stale[request.id] = row
        super().observe(requests, verdicts)


class KeyedByPosition(Meddling):
    """Draws with noise that belongs to the position: the same again where a position is drafted again.

    Under the block rule the tokens behind a rejected one had a say in its rejection, and that noise is
    used up. Under the ratio rule they had none, and in the reproducible mode it is how one draws.
    """

    def disguise(self, request: Any) -> Any:
        """By seed and position."""
        return _Drawing(request, lambda probs, position: gumbel_max(probs, request.noise.seed, position))


def _less_unsure(chains: Sequence[Drafting], device: torch.device) -> list[Proposal]:
    """What was written, but for last tokens that were looked at and are unsure."""
    for chain in chains:
        if chain.tokens and chain.confidences[-1] <= SURE:
            del chain.tokens[-1], chain.probs[-1]
    return proposals(chains, device)


_TAKE = Drafting.take


def take_with_a_wrong_q(
    self: Drafting, token: Tensor, drawn: int | None, confidence: float | None, probs: Tensor
) -> bool:
    """As `Drafting.take`, with another row than the one that the token was drawn from."""
    other = (probs + 0.02) ** 3
    return _TAKE(self, token, drawn, confidence, other / other.sum(-1, keepdim=True))


class SubVocabulary(Meddling):
    """Drafts over some tokens only, and reports q over all of them."""

    @staticmethod
    def _cut(probs: Tensor) -> Tensor:
        return torch.cat([probs[..., :_SMALL], torch.zeros_like(probs[..., _SMALL:])], -1)

    def disguise(self, request: SpecRequest) -> Any:
        """Draws among the known tokens."""
        return _Drawing(request, lambda probs, position: request.draw(self._cut(probs), position))


class Unnormalised(SubVocabulary):
    """The same, but reports q over the known tokens, not normalised: that is refused at the door."""

    def edit(self, request: SpecRequest, proposal: Proposal) -> Proposal:
        """The rows as they are, less the unknown tokens."""
        assert proposal.probs is not None
        return replace(proposal, probs=self._cut(proposal.probs))


class Undeclared(Meddling):
    """Takes the rows away: whatever was drawn is now proposed as a deterministic draft."""

    def edit(self, request: SpecRequest, proposal: Proposal) -> Proposal:
        """Tokens only."""
        return Proposal(proposal.tokens)


def _unwarped(part: str) -> Callable[..., list[Verdict]]:
    """A judge that takes ``part`` ("residual" or "bonus") from p before top-k, top-p and the like."""

    def verify_batch(cases: Sequence[Case], *, rule: str) -> list[Verdict]:
        return [one(case, rule) for case in cases]

    def one(case: Case, rule: str) -> Verdict:
        proposal, target = case.proposal, probabilities(case.logits, case.params)
        raw = probabilities(case.logits, SamplingParams(case.params.temperature))
        q = target[:0] if proposal.probs is None else proposal.probs
        apply = block_rule if rule == "block" else ratio_rule
        honest, wrong = apply(proposal.tokens, q, target), apply(proposal.tokens, q, raw)
        last = torch.arange(proposal.length + 1) == proposal.length
        take = last if part == "bonus" else ~last
        found = Acceptance.of(
            honest.accepted, torch.where(take.unsqueeze(-1), wrong.following, honest.following)
        )
        noise = torch.tensor(uniforms(2, case.generator), dtype=torch.float64)
        accepted = int(draw_at(found.accepted.unsqueeze(0), noise[:1]))
        token = int(draw_at(found.following[accepted : accepted + 1], noise[1:]))
        emitted = (*proposal.tokens[:accepted].tolist(), token)
        return Verdict(accepted, token, tuple(range(accepted)), emitted)

    return verify_batch


def _same_context(self: Any, logits: Tensor, proposal: Proposal) -> Processed:
    """Processors that forget the drafted tokens before a position."""
    if self.processors is None:
        return Processed(logits)
    rows = [self.processors.apply(row, self.token_ids, []) for row in logits]
    return Processed(torch.stack(rows))


def _top_p_first(logits: Tensor, params: SamplingParams) -> Tensor:
    """Top-p before the temperature, then top-p once more."""
    once = probabilities(logits, SamplingParams(1.0, top_p=params.top_p))
    return probabilities(once.log(), params)


@contextmanager
def _patched(where: str, what: object) -> Iterator[None]:
    with mock.patch(where, what):
        yield


@dataclass(frozen=True, slots=True)
class Bug:
    """A mistake, where it is put in, and a cell that shows it."""

    cell: Cell
    wrap: Callable[[Proposer], Proposer] | None = None
    patch: Callable[[], AbstractContextManager[None]] = nullcontext


_RATIO, _BLOCK = Cell(rule="ratio", batch="32"), Cell(rule="block", batch="32")
_COINS = replace(_BLOCK, target="coins")
_AUTO = replace(_BLOCK, proposer="auto")
_JUDGE = "specstream.engine.core.step.verify_batch"

BUGS: Mapping[str, Bug] = {
    "argmax draft, q given as if drawn": Bug(_RATIO, ArgmaxDraft),
    "unsure tokens looked at and dropped": Bug(_RATIO, DropUnsure),
    "draft and judge share their noise": Bug(_BLOCK, SharedNoise),
    "residual from unwarped p": Bug(
        replace(_RATIO, warper="top-k"), patch=lambda: _patched(_JUDGE, _unwarped("residual"))
    ),
    "bonus from unwarped p": Bug(
        replace(_BLOCK, warper="top-k"), patch=lambda: _patched(_JUDGE, _unwarped("bonus"))
    ),
    "q a position late": Bug(_BLOCK, ShiftedRows),
    "penalties without the accepted prefix": Bug(
        replace(_RATIO, processor="penalties"),
        patch=lambda: _patched(f"{sequence.__name__}.TokenSequence.process_rows", _same_context),
    ),
    "top-p before the temperature, and twice": Bug(
        replace(_BLOCK, warper="top-p"),
        patch=lambda: _patched("specstream.drafting.verify.probabilities", _top_p_first),
    ),
    "stale row of q after a full acceptance": Bug(replace(_RATIO, k="one"), StaleRow),
    "sub-vocabulary, q over all tokens": Bug(_BLOCK, SubVocabulary),
    "draft's noise keyed by position alone": Bug(_COINS, KeyedByPosition),
    "auto drops its unsure last token": Bug(
        _AUTO,
        patch=lambda: _patched("specstream.drafting.proposers.draft_model.proposals", _less_unsure),
    ),
}


class _Silent(ArgmaxDraft):
    """The argmax, proposed for what it is."""

    edit = Undeclared.edit


_COUPLED = Cell(rule="reproducible", batch="32")
HARMLESS: Mapping[str, Bug] = {
    "argmax draft without q": Bug(_RATIO, _Silent),
    "drawn draft without q": Bug(_BLOCK, Undeclared),
    "argmax draft, reproducible mode": Bug(_COUPLED, ArgmaxDraft),
    "unsure tokens dropped, reproducible mode": Bug(_COUPLED, DropUnsure),
    "q a position late, reproducible mode": Bug(_COUPLED, ShiftedRows),
    "sub-vocabulary, reproducible mode": Bug(_COUPLED, SubVocabulary),
    "sub-vocabulary, q not normalised": Bug(_BLOCK, Unnormalised),
    "draft's noise keyed by position alone, ratio rule": Bug(
        replace(_COINS, rule="ratio"), KeyedByPosition
    ),
}


def run_bug(bug: Bug, n: int) -> GTest:
    """Run a bug's cell ``n`` times with the bug in it."""
    proposer = bug.cell.proposer_object()
    with bug.patch():
        return run_cell(bug.cell, n, proposer=bug.wrap(proposer) if bug.wrap else None)
