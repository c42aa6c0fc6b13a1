"""Registry of what can be trained: one entry per drafting method."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from specstream.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specstream.model.runner import ModelRunner
    from specstream.train.options import TrainOptions
    from specstream.train.trainee import Trainee

__all__ = ["KINDS", "trainee_of"]

KINDS: Mapping[str, str] = {
    "block": "specstream.train.block:trainee",
    "draft": "specstream.train.draft:trainee",
    "eagle": "specstream.train.eagle:trainee",
    "early-exit": "specstream.train.early_exit:trainee",
    "medusa": "specstream.train.medusa:trainee",
    "streaming": "specstream.train.streaming:trainee",
}
"""``module:function`` by kind; the function is ``(target, tokenizer, options) -> Trainee``.

The function initialises weights with torch's global generator, which is seeded before, or from the
folder ``options.init``, which it refuses if it was made for another target.
"""


def trainee_of(
    target: ModelRunner, tokenizer: PreTrainedTokenizerBase, options: TrainOptions
) -> Trainee:
    """Make the trainee of ``options.kind``.

    Raises:
        ConfigError: an unknown kind, or a setting that this kind doesn't have.
        ModelError: the kind can't be trained for this target, or ``options.init`` belongs to another.
    """
    if options.kind not in KINDS:
        raise ConfigError(f"{options.kind!r} can't be trained; there are: {', '.join(KINDS)}")
    module, name = KINDS[options.kind].split(":")
    make = cast(
        "Callable[[ModelRunner, PreTrainedTokenizerBase, TrainOptions], Trainee]",
        getattr(importlib.import_module(module), name),
    )
    return make(target, tokenizer, options)
