"""Records of `MirrorProposer`: rounds, the chains drafted behind their outcomes, and counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from specstream.drafting.chain import Drafting
from specstream.drafting.checking import Explanation
from specstream.drafting.optional import StepTimes
from specstream.drafting.proposal import SpecRequest, Verdict
from specstream.drafting.vocabularies import RequestView

__all__ = ["Ahead", "MirrorCounts", "MirrorRound", "likely"]


class Ahead(RequestView):
    """A request as it will be once the tokens ``more`` are committed.

    Logits processors see ``more`` as drafted tokens.
    """

    def __init__(self, request: SpecRequest, more: Sequence[int]) -> None:
        super().__init__(request, [*request.token_ids, *more])
        self.more = list(more)

    def process(self, logits: Tensor, drafted: Sequence[int] | Tensor) -> Tensor:
        """See `SpecRequest.process`."""
        if not self.more:
            return self.request.process(logits, drafted)
        ids = drafted.tolist() if isinstance(drafted, Tensor) else drafted
        return self.request.process(logits, [*self.more, *ids])


@dataclass(slots=True)
class MirrorRound(Drafting):
    """One request's proposal, put together from up to two chains, and its branches.

    Attributes:
        written: Drafted tokens whose rows may be in the draft's cache, behind the committed tokens'.
        hidden: How many proposed tokens were drafted during the target pass before.
        branches: By outcome (the accepted tokens and the one after them) the chain that was drafted
            behind it, for the likeliest outcomes, as many as there was time for.
    """

    written: list[int] = field(default_factory=list)
    hidden: int = 0
    branches: dict[tuple[int, ...], Drafting] = field(default_factory=dict)

    def begin(self, chain: Drafting) -> None:
        """Begin the proposal with a branch's chain, whose rows are in the draft's cache."""
        self.drafted = chain.drafted[: self.count]
        self.tokens, self.probs = chain.tokens[: self.count], chain.probs[: self.count]
        self.hidden = len(self.drafted)

    def extend(self, chain: Drafting) -> None:
        """Append a chain that was drafted after the verdict."""
        self.drafted += chain.drafted
        self.tokens += chain.tokens
        self.probs += chain.probs
        self.written = chain.drafted


def likely(probs: Tensor, drafted: Sequence[int], most: int) -> list[tuple[int, ...]]:
    """The likeliest outcomes of a verification, the likeliest first.

    Args:
        probs: ``[K + 1, V]``: predicted distributions of the target after the committed tokens and after
            each drafted one.
        drafted: The K proposed tokens.
        most: The most outcomes to return.

    Returns:
        Each outcome's accepted tokens and the token that follows them.
    """
    reached, found = 1.0, list[tuple[float, tuple[int, ...]]]()
    width = min(most + 1, probs.shape[-1])
    tops, tokens = (part.tolist() for part in probs.topk(width, -1))
    for accepted, (row, ids) in enumerate(zip(tops, tokens, strict=True)):
        going_on = drafted[accepted] if accepted < len(drafted) else None
        for p, token in zip(row, ids, strict=True):
            if token != going_on and p == p:  # not for NaN
                found.append((reached * p, (*drafted[:accepted], token)))
        if going_on is not None:
            reached *= float(probs[accepted, going_on])
    found.sort(key=lambda one: -one[0])
    return [outcome for _, outcome in found[:most]]


@dataclass(slots=True)
class MirrorCounts:
    """Totals over all rounds.

    Attributes:
        rounds: Rounds with a proposal and a verdict.
        foretold: Rounds whose outcome had a branch.
        drafted: Proposed tokens.
        accepted: Accepted tokens.
        first: Proposals whose first token was accepted.
        hidden: Proposed tokens that were drafted during the target pass before.
        propose_ms: Time of proposing, in the steps whose times are known.
        verify_ms: Time of target passes.
        total_ms: Time of the whole steps.
        plain_ms: Time that as many plain steps would have taken.
    """

    rounds: int = 0
    foretold: int = 0
    drafted: int = 0
    accepted: int = 0
    first: int = 0
    hidden: int = 0
    propose_ms: float = 0.0
    verify_ms: float = 0.0
    total_ms: float = 0.0
    plain_ms: float = 0.0

    def add(self, one: MirrorRound, verdict: Verdict) -> None:
        """Count a round with its verdict."""
        self.rounds += 1
        self.foretold += verdict.tokens in one.branches
        self.drafted += len(one.drafted)
        self.accepted += verdict.accepted
        self.first += verdict.accepted > 0
        self.hidden += one.hidden

    def clock(self, times: StepTimes, plain_ms: float) -> None:
        """Add a step's times, unless it read prompts or verified nothing.

        ``plain_ms`` is the time of a plain step for as many requests.
        """
        if times.rows and times.tokens > times.rows:
            self.propose_ms += times.propose_ms
            self.verify_ms += times.verify_ms
            self.total_ms += times.total_ms
            self.plain_ms += plain_ms

    def explain(self, kind: str) -> Explanation:
        """Return the counts as figures and words."""
        rounds, plain_ms = max(1, self.rounds), self.plain_ms or 1.0
        tau, mean = 1.0 + self.accepted / rounds, self.drafted / rounds
        draft, verify = self.propose_ms / plain_ms, self.verify_ms / plain_ms
        cost = self.total_ms / plain_ms if self.plain_ms else 1.0
        hits, hidden = self.foretold / rounds, self.hidden / max(1, self.drafted)
        return Explanation(
            words=(
                f"of {self.rounds} outcomes {hits:.0%} were foretold and drafted for during the "
                f"target's pass; {hidden:.0%} of the proposed tokens come from there"
            ),
            kind=kind if self.rounds else "off",
            num_tokens=mean,
            acceptance=self.first / rounds,
            tau=tau,
            draft_cost=draft,
            verify_cost=verify,
            overhead=max(0.0, cost - verify - draft),
            predicted_speedup=tau / cost,
            ceiling=(1.0 + mean) / cost,
        )
