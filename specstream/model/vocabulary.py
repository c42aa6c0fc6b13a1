"""Compares token ids: of a draft and its target, of a tokenizer and its model."""

from __future__ import annotations

import logging
from typing import Any

from transformers import PreTrainedTokenizerBase

from specstream.config import DEFAULT_DRAFT, EngineConfig
from specstream.errors import ConfigError, ModelBroken, VocabularyMismatch
from specstream.model.heads.recognise import kind_of, read_head_config
from specstream.model.load import load_tokenizer
from specstream.models.kept import located

__all__ = ["check_rows", "find_draft"]

_log = logging.getLogger("specstream.model")


def find_draft(config: EngineConfig, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The configured draft model, else the bundled one if its vocabulary is this tokenizer's, else None.

    Heads among the configured drafts are no models.

    Raises:
        ConfigError: two draft models are configured.
        VocabularyMismatch: the configured draft has another vocabulary.
        ModelError: its tokenizer can't be read.
    """
    models = [n for n in config.drafts if kind_of(read_head_config(located(n))) is None]
    if len(models) > 1:
        raise ConfigError(
            f"--draft names two draft models, {models[0]} and {models[1]}; choose one"
        )
    if config.drafts and not models:
        return None
    name = models[0] if models else DEFAULT_DRAFT
    ours, theirs = tokenizer.get_vocab(), load_tokenizer(name).get_vocab()
    if ours == theirs:
        return name
    if not models:
        return None
    differ = [
        token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token)
    ]
    example = min(differ)
    raise VocabularyMismatch(
        f"draft {name} and target {config.target} don't share a tokenizer: {len(differ)} tokens differ "
        f"(for example {example!r}: {ours.get(example)} and {theirs.get(example)}); "
        "choose a draft of the same family, or --proposer suffix"
    )


def check_rows(name: str, tokenizer: Any, rows: int) -> None:
    """Refuse a model with fewer output rows than its tokenizer has ids.

    Special tokens added behind the vocabulary are only warned of: many tokenizers have a padding token
    that no prompt contains. A prompt with one is refused.

    Raises:
        ModelBroken: ordinary tokens have no row.
    """
    beyond = sorted((i, token) for token, i in tokenizer.get_vocab().items() if i >= rows)
    if not beyond:
        return
    added = tokenizer.added_tokens_decoder
    ordinary = [token for i, token in beyond if i not in added or not added[i].special]
    last = beyond[-1][0]
    remedy = (
        "take the tokenizer that was saved with the weights, or widen the model with transformers' "
        f"resize_token_embeddings({last + 1}) and save it"
    )
    if ordinary:
        raise ModelBroken(
            f"{name} has {rows} output rows and its tokenizer ids up to {last}: {len(ordinary)} tokens "
            f"have no row (for example {ordinary[0]!r}); {remedy}"
        )
    _log.warning(
        "%s has %d output rows: its tokenizer's %s can't be read or written; %s",
        name, rows, ", ".join(token for _, token in beyond[:3]), remedy,
    )  # fmt: skip
