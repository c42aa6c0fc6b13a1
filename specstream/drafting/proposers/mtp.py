"""Drafting with the multi-token prediction (MTP) module of the target's folder (arXiv 2412.19437)."""

from __future__ import annotations

from typing import cast

from specstream.drafting.candidate import EngineParts
from specstream.drafting.proposers.eagle import EagleProposer
from specstream.errors import ConfigError
from specstream.methods import EagleProposerConfig, MtpProposerConfig
from specstream.model.heads.mtp import MtpHead

__all__ = ["build"]


def build(config: MtpProposerConfig, parts: EngineParts) -> EagleProposer:
    """Build an `EagleProposer` of chains: like an EAGLE head, the module reads states and tokens.

    Raises:
        ConfigError: the module wasn't loaded.
    """
    head = parts.heads.get("mtp")
    if head is None:
        raise ConfigError(
            "--proposer mtp drafts by a multi-token prediction module in the target's own folder, and "
            "none was loaded; choose another proposer"
        )
    settings = EagleProposerConfig(depth=config.num_tokens, top_k=1, window=config.window)
    size, chunk = parts.target.vocab_size, parts.prefill_chunk
    return EagleProposer(settings, cast(MtpHead, head), size, parts.eos_ids, chunk)
