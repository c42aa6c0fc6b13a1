"""Builds the proposer of a draft model, whose tokenizer may be the target's or another one."""

from __future__ import annotations

from specstream.drafting.candidate import CandidateProposer, EngineParts
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.drafting.proposers.foreign import ForeignDraftProposer
from specstream.methods import DraftProposerConfig

__all__ = ["build"]


def build(config: DraftProposerConfig, parts: EngineParts) -> CandidateProposer:
    """Build the proposer that fits the draft's vocabulary.

    Raises:
        ConfigError: no draft model was loaded.
    """
    draft, chunk, translation = parts.draft_model("draft"), parts.prefill_chunk, parts.translation
    if translation is None:
        return DraftModelProposer(config, draft, parts.eos_ids, chunk)
    device = parts.target.device
    return ForeignDraftProposer(config, draft, parts.eos_ids, translation, device, chunk)
