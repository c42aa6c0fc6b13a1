"""Speculative decoding: proposals, their verification, and the proposers that make them.

What a proposer of your own needs is here; the names are resolved on first use, as they load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specstream.drafting.proposal import (
        MAX_NODES,
        Capabilities,
        Proposal,
        Proposer,
        SpecRequest,
        Verdict,
    )
    from specstream.drafting.proposers.own import ProposerContext

_PROPOSAL = "specstream.drafting.proposal"
_HOMES = {
    "MAX_NODES": _PROPOSAL,
    "Capabilities": _PROPOSAL,
    "Proposal": _PROPOSAL,
    "Proposer": _PROPOSAL,
    "ProposerContext": "specstream.drafting.proposers.own",
    "SpecRequest": _PROPOSAL,
    "Verdict": _PROPOSAL,
}

__all__ = [
    "MAX_NODES",
    "Capabilities",
    "Proposal",
    "Proposer",
    "ProposerContext",
    "SpecRequest",
    "Verdict",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'specstream.drafting' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
