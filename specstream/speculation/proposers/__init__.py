"""One file a method. A kind names its class; the file is read only when the kind is used."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["KINDS", "proposer_class"]

KINDS = {
    "auto": "specstream.speculation.proposers.auto:AutoProposer",
    "draft": "specstream.speculation.proposers.draft_model:DraftModelProposer",
    "ngram": "specstream.speculation.proposers.ngram:NgramProposer",
    "off": "specstream.speculation.proposers.off:OffProposer",
}


def proposer_class(kind: str) -> Any:
    """The class of a kind (a key of ``KINDS``)."""
    module, name = KINDS[kind].split(":")
    return getattr(importlib.import_module(module), name)
