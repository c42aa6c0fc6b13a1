"""One file a method. A kind names its module, which is read only when the kind is used.

A module has a function ``build(config, parts)``, which returns the proposer: a `CandidateProposer` where
``auto`` may choose the method.
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
    "streaming": "specstream.speculation.proposers.streaming",
}


def build_proposer(config: ProposerConfig, parts: Parts) -> Proposer:
    """The proposer that ``config`` describes.

    Raises:
        ConfigError: a model or head that it needs wasn't loaded.
        ModelUnsupported: the target can't serve it.
    """
    return cast("Proposer", importlib.import_module(KINDS[config.kind]).build(config, parts))
