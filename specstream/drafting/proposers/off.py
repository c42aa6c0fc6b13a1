"""Plain decoding: proposes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from specstream.drafting.candidate import EngineParts
from specstream.drafting.proposal import Capabilities, Proposal, SpecRequest, Verdict
from specstream.methods import OffProposerConfig

__all__ = ["OffProposer", "build"]


class OffProposer:
    """Proposes nothing, so that every round is one target pass and one token."""

    name = "off"
    capabilities = Capabilities()

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        """An empty proposal for each request."""
        return [Proposal.empty() for _ in requests]

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        """Do nothing."""

    def release(self, slot: int) -> None:
        """Do nothing."""


def build(config: OffProposerConfig, parts: EngineParts) -> OffProposer:
    """Build the proposer, which needs neither settings nor models."""
    return OffProposer()
