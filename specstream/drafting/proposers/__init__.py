"""The drafting methods, one module each; a module is imported only when its method is used.

Each module has a function ``build(config, parts)`` that returns the proposer; if ``auto`` may choose the
method, that is a `CandidateProposer`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from specstream.methods import ProposerConfig

if TYPE_CHECKING:
    from specstream.drafting.candidate import EngineParts
    from specstream.drafting.proposal import Proposer

__all__ = ["KINDS", "build_proposer"]

KINDS = {
    "auto": "specstream.drafting.proposers.auto",
    "block": "specstream.drafting.proposers.block",
    "draft": "specstream.drafting.proposers.draft_build",
    "suffix": "specstream.drafting.proposers.suffix",
    "lookahead": "specstream.drafting.research.lookahead",
    "eagle": "specstream.drafting.proposers.eagle",
    "early-exit": "specstream.drafting.research.early_exit",
    "medusa": "specstream.drafting.research.medusa",
    "mirror": "specstream.drafting.research.mirror",
    "mtp": "specstream.drafting.proposers.mtp",
    "off": "specstream.drafting.proposers.off",
    "own": "specstream.drafting.proposers.own",
    "streaming": "specstream.drafting.research.streaming",
}


def build_proposer(config: ProposerConfig, parts: EngineParts) -> Proposer:
    """Build the proposer that ``config`` describes.

    Raises:
        ConfigError: a model or head that the method needs wasn't loaded, or a proposer of the user's
            can't be made.
        ModelUnsupported: the target can't serve the method.
    """
    return cast("Proposer", importlib.import_module(KINDS[config.kind]).build(config, parts))
