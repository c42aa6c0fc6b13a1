"""The explanation that an adaptive proposer gives of its decisions."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Explanation"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The state of the policy in figures and words.

    Costs are relative to the time of a plain round, which decodes one token per request.

    Attributes:
        words: The figures as a sentence.
        kind: The candidate that proposes in most rounds at present; "off" where few rounds have a
            proposal.
        num_tokens: Mean tokens proposed per round.
        acceptance: Probability that the first proposed token is accepted.
        tau: Mean tokens per round, the target's own token included.
        draft_cost: Cost of one draft pass.
        verify_cost: Cost of the target pass over a proposal of ``num_tokens`` tokens.
        overhead: Cost of everything outside the passes, in a round with a proposal.
        predicted_speedup: Expected tokens per expected time, against plain decoding.
        ceiling: The speedup if every proposed token were accepted.
    """

    words: str
    kind: str
    num_tokens: float
    acceptance: float
    tau: float
    draft_cost: float
    verify_cost: float
    overhead: float
    predicted_speedup: float
    ceiling: float
