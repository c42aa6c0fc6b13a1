"""What the policy is told and what it answers. Times are milliseconds.

Values that are made anew each round are tuples: constructing one takes a third of a frozen dataclass's
time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from specstream.speculation.explanation import Explanation

__all__ = ["Candidate", "Explanation", "Offer", "Outcome", "Outlook", "Plan", "RoundTimes"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposer, as far as the policy has to know it.

    Attributes:
        name: Its `Proposal.source`; "off" is taken.
        title: Its name in explanations.
        passes: Draft passes for a proposal: "none" (lookup in the text), "one" (heads on the target's
            hidden states) or "each" (one per token, or per level of a tree).
        stops: Whether drafting can be stopped after any token (level) by its confidence (`Plan.go_on`),
            at no cost.
        priors: Initial acceptance probability of each evidence class (see `Offer.evidence`). Empty: a
            draft model's.
        acceptance: What its trainer measured, by position, each given those before; (): not known.
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
        tokens: The longest proposal (of a tree: its depth); 0: none.
        evidence: An evidence class per token (per level of a tree), which indexes `Candidate.priors`:
            tokens of one class are accepted about equally often. Empty: only the position predicts
            acceptance.
        behind: Tokens that the candidate has to read first, beyond the one or two of any round.
        ids: The offered token ids if they are known before the choice (lookup). Acceptance is then
            learned from every round, whether or not the candidate proposed.
        nodes: Of a tree: its nodes down to each level, cumulative. Empty: a chain, one token a level.
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
        budget: The most tokens that may be proposed, >= 0.
        offers: By candidate.
        phrase_left: With the objective *first phrase*: about how many tokens are left until its end.
            None once the phrase is complete, and with any other objective.
    """

    id: int
    greedy: bool
    budget: int
    offers: Mapping[str, Offer]
    phrase_left: int | None = None


class Plan(NamedTuple):
    """Who proposes for one request in one round, and the longest proposal (of a tree: its depth).

    ``go_on`` is called after each drafted token (which is kept) with the probability that the draft
    gave to that token; False ends the drafting there. None: the length is fixed. Stopping after a
    token that is kept is lossless under every verification rule. Where several requests draft in
    lockstep, all are asked at one depth before any is asked at the next. Of a tree it is asked once a
    level, with the level's mass: the probability that one of its nodes is the next token, given that
    the level before holds the one before.

    ``least``: nodes of a tree whose paths are less likely cost more in the target pass than they bring.
    """

    proposer: str
    num_tokens: int
    go_on: Callable[[float], bool] | None = None
    least: float = 0.0


class Outcome(NamedTuple):
    """One request after a round.

    Attributes:
        id: The request.
        plan: Its plan.
        drafted: Tokens proposed, all nodes of a tree.
        accepted: Of these, how many the verifier accepted.
        confidences: The draft's probability of each token of a chain, or the mass of each level of a
            tree, that it drafted; () if unknown.
        compared: By candidate with `Offer.ids`: how many of these tokens have a committed counterpart,
            and how many of those agree, from the first on.
        depth: Levels of a proposed tree; None: a chain.
    """

    id: int
    plan: Plan
    drafted: int
    accepted: int
    confidences: Sequence[float] = ()
    compared: Mapping[str, tuple[int, int]] = {}
    depth: int | None = None


class RoundTimes(NamedTuple):
    """One engine step.

    Attributes:
        draft_ms: All drafting.
        draft_forwards: Draft passes, one after the other (requests draft in lockstep).
        draft_read: Tokens that the draft caught up on (`Offer.behind`), over all requests.
        verify_ms: The target pass.
        rows: Requests in the target pass; 0: the step also read prompts, its times are no sample of a
            round.
        tokens: Tokens in the target pass, over all requests.
        other_ms: Everything else that a round needs, whoever proposes: sampling, committing, emitting.
        plan_ms: Offers, planning and learning: what the choice itself costs.
    """

    draft_ms: float
    draft_forwards: int
    draft_read: int
    verify_ms: float
    rows: int
    tokens: int
    other_ms: float
    plan_ms: float = 0.0
