"""The drafting methods, one module each; a module is imported only when its method is used.

Each module has a function ``build(config, parts)`` that returns the proposer; if ``auto`` may choose the
method, that is a `CandidateProposer`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from specstream.methods import ProposerConfig

if TYPE_CHECKING:
    from specstream.speculation.proposal import Proposer
    from specstream.speculation.proposers.parts import Parts

__all__ = ["KINDS", "build_proposer"]

KINDS = {
    "auto": "specstream.speculation.proposers.auto_build",
    "block": "specstream.speculation.proposers.block",
    "draft": "specstream.speculation.proposers.draft_build",
    "suffix": "specstream.speculation.proposers.suffix",
    "lookahead": "specstream.speculation.proposers.lookahead",
    "eagle": "specstream.speculation.proposers.eagle",
    "early-exit": "specstream.speculation.proposers.early_exit",
    "medusa": "specstream.speculation.proposers.medusa",
    "mirror": "specstream.speculation.proposers.mirror",
    "mtp": "specstream.speculation.proposers.mtp",
    "off": "specstream.speculation.proposers.off",
    "own": "specstream.speculation.proposers.own",
    "streaming": "specstream.speculation.proposers.streaming",
}


def build_proposer(config: ProposerConfig, parts: Parts) -> Proposer:
    """Build the proposer that ``config`` describes.

    Raises:
        ConfigError: a model or head that the method needs wasn't loaded, or a proposer of the user's
            can't be made.
        ModelUnsupported: the target can't serve the method.
    """
    return cast("Proposer", importlib.import_module(KINDS[config.kind]).build(config, parts))
