"""What the engine tells the controller, and what it gets back. Times are milliseconds.

What is made anew each round are tuples: they cost a third of what frozen dataclasses do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = ["Explanation", "Kind", "Outcome", "Outlook", "Plan", "RoundTimes"]

Kind = Literal["draft", "ngram", "off"]


class Outlook(NamedTuple):
    """One request before a round.

    Attributes:
        id: Names the request.
        greedy: Whether it decodes greedily.
        budget: The most tokens that may be proposed, >= 0.
        lookup: How many tokens prompt lookup can offer now; 0: none.
        match: Length of the suffix that lookup found again; 0: none.
        behind: Tokens that the draft has to read first beyond the usual one or two: 0 from round to
            round, the whole prompt before its first round.
        phrase_left: With the objective *first phrase*: about how many tokens are left to its end.
            None once that is past, and with any other objective.
        support: How another such place went on: 0 there is none, 1 otherwise, 2 as offered.
    """

    id: int
    greedy: bool
    budget: int
    lookup: int = 0
    match: int = 0
    behind: int = 0
    phrase_left: int | None = None
    support: int = 0


class Plan(NamedTuple):
    """Who proposes for one request in one round, and at most how many tokens.

    ``go_on`` is asked after each token that the draft proposed (and that is kept) with the
    probability that the draft gave it; False ends the drafting there. None: a fixed number.
    Stopping on a token that is kept is lossless under every rule of verification. Where several
    requests draft in lockstep, all are asked at one depth before any is asked at the next.
    """

    proposer: Kind
    num_tokens: int
    go_on: Callable[[float], bool] | None = None


class Outcome(NamedTuple):
    """One request after a round.

    Attributes:
        id: Names the request.
        plan: What was planned for it.
        drafted: Tokens that were proposed.
        accepted: How many of them stand, as the verifier said: also where a stop ended the round
            before the last of them.
        match: The outlook's ``match``.
        confidences: The draft's probability of each token that it proposed; () if unknown.
        offered: How many tokens of lookup's offer can be compared with what was committed, whoever
            proposed: the smaller of the offer and the round's tokens. 0 if not known.
        agreed: How many of those, from the first on, are what was committed.
        support: The outlook's ``support``.
    """

    id: int
    plan: Plan
    drafted: int
    accepted: int
    match: int = 0
    confidences: tuple[float, ...] = ()
    offered: int = 0
    agreed: int = 0
    support: int = 0


class RoundTimes(NamedTuple):
    """One step of the engine.

    Attributes:
        draft_ms: All of the drafting.
        draft_forwards: Draft passes, one after the other (requests that draft do so in lockstep).
        draft_read: Tokens that were caught up beyond the usual, over all requests.
        verify_ms: The target's pass.
        rows: Requests in it.
        tokens: Tokens fed to it, over all requests.
        other_ms: What else it takes to make a round of the engine's, whoever proposes: sampling,
            committing, emitting, Python.
        plan_ms: Looking up, planning, and learning from it: what only the choice itself costs.
    """

    draft_ms: float
    draft_forwards: int
    draft_read: int
    verify_ms: float
    rows: int
    tokens: int
    other_ms: float
    plan_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why the controller does what it does. Ratios are to a plain round, one token a request.

    Attributes:
        words: The same in a sentence.
        kind: Who proposes at present.
        num_tokens: Tokens proposed a round at present, on average.
        acceptance: Probability that the first proposed token stands.
        tau: Expected tokens a round, the target's own token included.
        draft_cost: One draft pass.
        verify_cost: The target's pass over a proposal of that length.
        overhead: Everything outside the passes, in a round with a proposal.
        predicted_speedup: Expected tokens by expected time, against plain decoding.
        ceiling: The speedup if every proposed token stood.
    """

    words: str
    kind: Kind
    num_tokens: float
    acceptance: float
    tau: float
    draft_cost: float
    verify_cost: float
    overhead: float
    predicted_speedup: float
    ceiling: float
