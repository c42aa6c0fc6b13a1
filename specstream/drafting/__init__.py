"""Speculative decoding: the drafting methods, and what a proposer of your own needs.

A method's settings go to `specstream.Engine.load` as ``proposer=``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specstream.lazy import offers

if TYPE_CHECKING:
    from specstream.drafting.proposal import (
        MAX_NODES as MAX_NODES,
        Capabilities as Capabilities,
        Proposal as Proposal,
        Proposer as Proposer,
        SpecRequest as SpecRequest,
        Verdict as Verdict,
    )
    from specstream.drafting.proposers.own import ProposerContext as ProposerContext
    from specstream.methods import (
        AutoProposerConfig as AutoProposerConfig,
        BlockProposerConfig as BlockProposerConfig,
        DraftProposerConfig as DraftProposerConfig,
        EagleProposerConfig as EagleProposerConfig,
        EarlyExitProposerConfig as EarlyExitProposerConfig,
        LookaheadProposerConfig as LookaheadProposerConfig,
        MedusaProposerConfig as MedusaProposerConfig,
        MirrorProposerConfig as MirrorProposerConfig,
        MtpProposerConfig as MtpProposerConfig,
        OffProposerConfig as OffProposerConfig,
        StreamingProposerConfig as StreamingProposerConfig,
        SuffixProposerConfig as SuffixProposerConfig,
    )

__all__, __getattr__, __dir__ = offers(
    __name__,
    {
        "specstream.methods": (
            "AutoProposerConfig BlockProposerConfig DraftProposerConfig EagleProposerConfig "
            "EarlyExitProposerConfig LookaheadProposerConfig MedusaProposerConfig "
            "MirrorProposerConfig MtpProposerConfig OffProposerConfig StreamingProposerConfig "
            "SuffixProposerConfig"
        ),
        "specstream.drafting.proposal": "MAX_NODES Capabilities Proposal Proposer SpecRequest Verdict",
        "specstream.drafting.proposers.own": "ProposerContext",
    },
)
