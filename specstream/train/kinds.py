"""What can be trained, by the names of drafting methods."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from specstream.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specstream.model.runner import ModelRunner
    from specstream.train.options import TrainOptions
    from specstream.train.trainee import Trainee

__all__ = ["KINDS", "trainee_of"]

KINDS = ("block", "draft", "eagle", "early-exit", "medusa", "streaming")
"""What can be trained: each has a module here with ``trainee(target, tokenizer, options) -> Trainee``.

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
    module = importlib.import_module(f"specstream.train.{options.kind.replace('-', '_')}")
    made: Trainee = module.trainee(target, tokenizer, options)
    return made
