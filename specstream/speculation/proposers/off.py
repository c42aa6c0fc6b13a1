"""Plain decoding: proposes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from specstream.methods import OffProposerConfig
from specstream.speculation.proposal import Capabilities, Proposal, SpecRequest, Verdict
from specstream.speculation.proposers.parts import Parts

__all__ = ["OffProposer", "build"]


class OffProposer:
    """Every round is one target pass and one token."""

    name = "off"
    capabilities = Capabilities()

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        """Nothing, for each."""
        return [Proposal.empty() for _ in requests]

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        """Nothing to learn."""

    def release(self, slot: int) -> None:
        """Nothing is kept."""


def build(config: OffProposerConfig, parts: Parts) -> OffProposer:
    """Needs nothing."""
    return OffProposer()
