"""Builds the adaptive proposer over all drafting methods whose models were loaded."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from specstream.checks import first_line
from specstream.drafting.calibration import calibrate
from specstream.drafting.policy.policy import Policy
from specstream.drafting.proposers import build_proposer
from specstream.drafting.proposers.auto import AutoProposer
from specstream.drafting.proposers.candidate import CandidateProposer, EngineParts, Rehearsed
from specstream.errors import ModelUnsupported
from specstream.methods import (
    AutoProposerConfig,
    BlockProposerConfig,
    DraftProposerConfig,
    EagleProposerConfig,
    EarlyExitProposerConfig,
    LookaheadProposerConfig,
    MedusaProposerConfig,
    MtpProposerConfig,
    ProposerConfig,
    SuffixProposerConfig,
)
from specstream.model.runner import ModelRunner
from specstream.model.selfcheck import check_trees

__all__ = ["build"]

_log = logging.getLogger("specstream.engine")

_MAX_DEPTH = 8  # levels of an EAGLE draft: deeper ones are seldom accepted


def build(config: AutoProposerConfig, parts: EngineParts) -> AutoProposer:
    """Build the adaptive proposer over lookup, the draft model if there is one, and every head."""
    every = [cast(CandidateProposer, build_proposer(one, parts)) for one in _configs(config, parts)]
    made = [one for one in every if _runs(one, parts.target)]
    passes = {one.candidate.name: one.rehearse for one in made if isinstance(one, Rehearsed)}
    costs = calibrate(parts.target, parts.draft, passes, parts.times)
    candidates = [one.candidate for one in made]
    told = [replace(one, acceptance=parts.acceptance.get(one.name, ())) for one in candidates]
    policy = Policy(told, costs, max_tokens=config.max_tokens)
    return AutoProposer(policy, made)


def _runs(proposer: CandidateProposer, target: ModelRunner) -> bool:
    """Whether a candidate works on this machine; one that doesn't is left out with a warning."""
    try:
        if isinstance(proposer, Rehearsed):
            proposer.rehearse()
        if proposer.capabilities.trees:
            check_trees(target)
    except (RuntimeError, ModelUnsupported) as error:
        name = proposer.candidate.name
        _log.warning("auto drafts without %s, which fails here: %s", name, first_line(error))
        return False
    return True


def _configs(config: AutoProposerConfig, parts: EngineParts) -> Iterator[ProposerConfig]:
    yield SuffixProposerConfig(
        num_tokens=config.max_tokens,
        min_match=config.min_match,
        store=config.store,
        store_tokens=config.store_tokens,
    )
    if "lookahead" in config.methods:
        yield LookaheadProposerConfig()
    if parts.draft is not None:
        yield DraftProposerConfig(window=config.window, vocabulary=config.vocabulary)
    heads: tuple[ProposerConfig, ...] = (  # a new method with a head gets one line here
        EagleProposerConfig(depth=min(config.max_tokens, _MAX_DEPTH), top_k=config.top_k),
        EarlyExitProposerConfig(),
        MedusaProposerConfig(),
        MtpProposerConfig(num_tokens=min(config.max_tokens, 4)),
        BlockProposerConfig(num_tokens=config.max_tokens),
    )
    yield from (one for one in heads if one.kind in parts.heads)
