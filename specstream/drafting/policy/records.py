"""Inputs and outputs of the policy. Times are milliseconds.

Records that are made in each round are named tuples, which are three times as fast to construct as
frozen dataclasses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = ["Candidate", "Offer", "Outlook", "RoundOutcome", "RoundPlan", "RoundTimes"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """The policy's view of a proposer.

    Attributes:
        name: Its `Proposal.source`; "off" is reserved.
        title: Its name in explanations.
        passes: Draft passes of a proposal: "none" (lookup in the text), "one" (heads on the target's
            hidden states) or "each" (one per token, or per level of a tree).
        stops: Whether drafting can be stopped after any token (level) by its confidence
            (`RoundPlan.go_on`) without extra cost.
        priors: Prior acceptance probability of each evidence class (see `Offer.evidence`). Empty: the
            priors of a draft model, by position.
        acceptance: Acceptance that its trainer measured, by position, each given acceptance of all
            earlier positions; (): unknown.
    """

    name: str
    title: str
    passes: Literal["none", "one", "each"] = "each"
    stops: bool = False
    priors: tuple[float, ...] = ()
    acceptance: tuple[float, ...] = ()


class Offer(NamedTuple):
    """What one candidate can propose for one request in this round.

    Attributes:
        tokens: Length of the longest proposal (a tree's depth); 0: none.
        evidence: Evidence class of each token (of each level of a tree), an index into
            `Candidate.priors`: tokens of one class are accepted about equally often. Empty: only the
            position predicts acceptance.
        behind: Tokens that the candidate has to read first, beyond the one or two of any round.
        ids: The offered token ids if they are known before the choice (lookup). Acceptance is then
            learned in every round, whether or not the candidate proposed.
        nodes: For a tree, the cumulative number of nodes down to each level. Empty: a chain, one token
            a level.
    """

    tokens: int
    evidence: Sequence[int] = ()
    behind: int = 0
    ids: Sequence[int] = ()
    nodes: Sequence[int] = ()


class Outlook(NamedTuple):
    """One request before a round.

    Attributes:
        id: The request.
        greedy: Whether it decodes greedily.
        budget: Largest number of tokens that may be proposed, >= 0.
        offers: The offer of each candidate, by name.
    """

    id: int
    greedy: bool
    budget: int
    offers: Mapping[str, Offer]


class RoundPlan(NamedTuple):
    """The plan for one request in one round.

    Attributes:
        proposer: Name of the candidate that proposes; "off": none.
        num_tokens: Length of the longest proposal (a tree's depth).
        go_on: Called after each drafted token, which is kept, with the draft's probability of that
            token; False ends the drafting. Stopping after a kept token is lossless under every
            verification rule. Where several requests draft in lockstep, it is called for all of them at
            one depth before the next. For a tree it is called once a level with the level's mass: the
            probability that one of its nodes is the next token, given that the previous level holds the
            token before. None: the length is fixed.
        least: Probability below which a tree node's path costs more in the target pass than it gains.
    """

    proposer: str
    num_tokens: int
    go_on: Callable[[float], bool] | None = None
    least: float = 0.0


class RoundOutcome(NamedTuple):
    """One request after a round.

    Attributes:
        id: The request.
        plan: Its plan.
        drafted: Number of proposed tokens (all nodes of a tree).
        accepted: Number of tokens that the verifier accepted.
        confidences: The draft's probability of each drafted token of a chain, or the mass of each level
            of a tree; () if unknown.
        compared: By candidate with `Offer.ids`: the number of offered tokens at positions that were
            committed, and the length of the prefix of these that agrees.
        depth: Levels of a proposed tree; None: a chain.
    """

    id: int
    plan: RoundPlan
    drafted: int
    accepted: int
    confidences: Sequence[float] = ()
    compared: Mapping[str, tuple[int, int]] = {}
    depth: int | None = None


class RoundTimes(NamedTuple):
    """One engine step.

    Attributes:
        draft_ms: Time of all drafting.
        draft_forwards: Number of consecutive draft passes (requests draft in lockstep).
        draft_read: Tokens that the draft read to catch up (`Offer.behind`), over all requests.
        verify_ms: Time of the target pass.
        rows: Requests in the target pass; 0: the step also read prompts, so its times are no sample of
            a round.
        tokens: Tokens in the target pass, over all requests.
        other_ms: Time of all that does not depend on the proposer: sampling, committing, emitting.
        plan_ms: Time of the choice itself: offers, planning and learning.
    """

    draft_ms: float
    draft_forwards: int
    draft_read: int
    verify_ms: float
    rows: int
    tokens: int
    other_ms: float
    plan_ms: float = 0.0
