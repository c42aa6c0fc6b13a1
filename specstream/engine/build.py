"""The composition root: from a config to a running core. The only module that names concrete classes."""

from __future__ import annotations

import os
from typing import Any, cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specstream.config import (
    AutoProposerConfig,
    DraftProposerConfig,
    EngineConfig,
    NgramProposerConfig,
)
from specstream.engine.loop import EngineCore
from specstream.errors import VocabularyMismatch
from specstream.model.compiled import DRAFT, TARGET
from specstream.model.invariance import find_fixed_width
from specstream.model.load import check_vocabulary, load_model, load_tokenizer
from specstream.model.runner import ModelRunner
from specstream.spec.proposal import Proposer
from specstream.spec.proposers import proposer_class

__all__ = ["build_engine"]


def build_engine(config: EngineConfig) -> EngineCore:
    """Read the models and put the parts together. Takes seconds; call it on the engine's thread.

    Raises:
        ModelError: any of its kinds, from reading or matching the models.
        ConfigError: the device is not there, or passes can't be compiled for it.
    """
    torch.set_num_threads(config.threads or _default_threads())
    tokenizer = load_tokenizer(config.target)
    model = load_model(config.target, config)
    if model.device.type == "cuda":
        torch.cuda.set_device(model.device)  # of this thread: streams and graphs are made for it
    width = find_fixed_width(model, config) if config.mode == "reproducible" else None
    target = ModelRunner(
        model,
        fixed_width=width,
        context_length=config.context_length,
        captured=TARGET if config.compile else None,
    )
    target.warm_up()
    eos_ids = _eos_ids(target.model, tokenizer)
    proposer = _build_proposer(config, target, tokenizer, eos_ids)
    return EngineCore(config, target, tokenizer, proposer, eos_ids)


def _build_proposer(
    config: EngineConfig,
    target: ModelRunner,
    tokenizer: PreTrainedTokenizerBase,
    eos_ids: frozenset[int],
) -> Proposer:
    match config.proposer:
        case AutoProposerConfig() as wanted:
            return _build_auto(wanted, config, target, tokenizer, eos_ids)
        case DraftProposerConfig() as wanted:
            draft = _load_draft(config, target, tokenizer)
            return cast(Proposer, _draft_proposer(wanted, draft, eos_ids, config))
        case NgramProposerConfig() as wanted:
            made: Proposer = proposer_class("ngram")(wanted, target.device)
            return made
        case _:
            plain: Proposer = proposer_class("off")()
            return plain


def _build_auto(
    wanted: AutoProposerConfig,
    config: EngineConfig,
    target: ModelRunner,
    tokenizer: PreTrainedTokenizerBase,
    eos_ids: frozenset[int],
) -> Proposer:
    from specstream.engine.calibration import calibrate
    from specstream.spec.control.controller import Controller

    draft = _load_draft(config, target, tokenizer) if wanted.draft else None
    controller = Controller(
        kinds=frozenset({"ngram"} if draft is None else {"ngram", "draft"}),
        max_tokens=wanted.max_tokens,
        interactive=target.device.type == "cpu",
        costs=calibrate(target, draft),
    )
    lookup = NgramProposerConfig(
        num_tokens=wanted.max_tokens, max_ngram=wanted.max_ngram, min_ngram=wanted.min_ngram
    )
    made: Proposer = proposer_class("auto")(
        controller,
        proposer_class("ngram")(lookup, target.device),
        None
        if draft is None
        else _draft_proposer(DraftProposerConfig(window=wanted.window), draft, eos_ids, config),
    )
    return made


def _draft_proposer(
    wanted: DraftProposerConfig, draft: ModelRunner, eos_ids: frozenset[int], config: EngineConfig
) -> Any:
    return proposer_class("draft")(wanted, draft, eos_ids, config.prefill_chunk)


def _load_draft(
    config: EngineConfig, target: ModelRunner, tokenizer: PreTrainedTokenizerBase
) -> ModelRunner:
    names = (config.target, config.draft)
    check_vocabulary(tokenizer, load_tokenizer(config.draft), names)
    model = load_model(config.draft, config, config.draft_dtype)
    draft = ModelRunner(
        model,
        vocab_size=target.vocab_size,
        captured=DRAFT if config.compile else None,
    )
    if draft.model_vocab_size < len(tokenizer):
        raise VocabularyMismatch(
            f"draft {config.draft} has {draft.model_vocab_size} output rows for a "
            f"tokenizer of {len(tokenizer)} tokens"
        )
    draft.warm_up()
    return draft


def _default_threads() -> int:
    """All cores but one.

    A pool that waits for a core which speech or the event loop holds is many times slower than a
    smaller pool.
    """
    return min(torch.get_num_threads(), max(1, (os.cpu_count() or 1) - 1))


def _eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Every id that ends a turn: models often name more than one, in different places."""
    found: set[int] = set()
    for value in (model.generation_config.eos_token_id, tokenizer.eos_token_id):
        if isinstance(value, int):
            found.add(value)
        elif value is not None:
            found.update(int(i) for i in value)
    return frozenset(found)
