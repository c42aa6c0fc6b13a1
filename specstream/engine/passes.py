"""The plan of a step's target pass, and its results: which requests take a round, and who prefills."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from specstream.engine.request import Request
from specstream.engine.sequence import TokenSequence
from specstream.speculation.proposal import Proposal

__all__ = ["Part", "Pass", "plan_step"]


class Part(NamedTuple):
    """One request's part of a target pass."""

    request: Request  # admitted
    tokens: int  # how many unread committed tokens (prompt or reply) the pass reads
    proposal: Proposal | None  # verified after them; None if the prompt isn't read to its end

    @property
    def sequence(self) -> TokenSequence:
        """The request's sequence."""
        return self.request.sequence

    @property
    def proposed(self) -> int:
        """How many tokens are proposed."""
        return 0 if self.proposal is None else self.proposal.length


class Pass:
    """The results of a target pass. Parts that take a round come first, as in `plan_step`."""

    def __init__(
        self, parts: list[Part], starts: list[int], logits: list[Tensor], states: list[Tensor]
    ) -> None:
        self.parts = parts
        self.starts = starts  # the position of each part's first token
        self.logits = logits  # [K + 1, V] of each part
        self.states = states  # [n, depths, hidden] of each part, if the proposer reads them
        self.rounds = [part for part in parts if part.proposal is not None]
        self.sequences = [part.sequence for part in self.rounds]
        self.proposals = [part.proposal for part in parts if part.proposal is not None]


def plan_step(
    ready: list[Request], proposals: list[Proposal], *, chunk: int, budget: int, empty: Proposal
) -> list[Part]:
    """Divide a step's pass among requests: first the parts that take a round, then pure prefill.

    A prompt that is read to its end takes its first round in the same pass, without a proposal, so that
    the first token doesn't wait until the draft has read the prompt.

    Args:
        ready: Admitted requests, oldest first.
        proposals: One for each of them that has had a round before, in their order.
        chunk: Maximum prompt tokens of one request in a pass.
        budget: Maximum prompt tokens of the pass; the oldest prompt is served first.
        empty: An empty proposal on the target's device.
    """
    decoding = [request for request in ready if request.stats.rounds]
    rounds = [
        Part(request, request.sequence.unread, proposal)
        for request, proposal in zip(decoding, proposals, strict=True)
    ]
    reading = []
    for request in ready:
        if request.stats.rounds:
            continue
        unread, share = request.sequence.unread, min(chunk, budget)
        if unread <= share:
            rounds.append(Part(request, unread, empty))
        elif share > 0:
            reading.append(Part(request, share, None))
        budget -= min(unread, share)
    return rounds + reading
