"""Builds the learner of an engine from its loaded models, or refuses a draft that can't learn."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

from torch import nn
from transformers import LlamaForCausalLM

from specstream.config import EngineConfig
from specstream.drafting.candidate import EngineParts
from specstream.errors import ConfigError, ModelUnsupported
from specstream.model.heads.base import read_head_config
from specstream.model.heads.eagle import EagleHead
from specstream.model.heads.recognise import head_folder, kind_of
from specstream.training.draft import DraftTrainee
from specstream.training.learner import Learner, Served
from specstream.training.options import TrainOptions, trainee_of
from specstream.training.trainee import Trainee

__all__ = ["build_learner"]


def build_learner(config: EngineConfig, parts: EngineParts, heads: Sequence[str]) -> Learner:
    """Build the learner for the draft model if there is one, else for the EAGLE head.

    Args:
        config: The engine's config, in which ``learning`` is set.
        parts: The engine's loaded models and heads.
        heads: Names of the loaded heads, or of drafts among which they are.

    Raises:
        ConfigError: there is no draft model and no EAGLE head, or the folder to write to exists.
        ModelUnsupported: the draft or head is of a kind that can't learn, or the target gives no states.
    """
    assert config.learning is not None
    if config.learning.out is not None and Path(config.learning.out).exists():
        raise ConfigError(f"learning.out: {config.learning.out} exists; name a folder to be made")
    trainee, served = _draft(parts) if parts.draft is not None else _eagle(parts, heads)
    return Learner(config.learning, parts.target, trainee, served)


def _draft(parts: EngineParts) -> tuple[Trainee, Served]:
    runner = parts.draft
    assert runner is not None
    name = type(runner.model).__name__
    if parts.translation is not None:
        raise ModelUnsupported(
            "learning: the draft has another tokenizer than the target, or lacks rows for its tokens, "
            "so it can't learn the target's distribution; choose a draft of the target's own"
        )
    if not isinstance(runner.model, LlamaForCausalLM):
        raise ModelUnsupported(f"learning: a draft learns if it is a Llama, and {name} is none")
    if runner.model_vocab_size != parts.target.model_vocab_size:
        raise ModelUnsupported(
            f"learning: the draft has {runner.model_vocab_size} output rows and the target "
            f"{parts.target.model_vocab_size}; choose a draft that was trained for this target"
        )
    own = copy.deepcopy(runner.model).requires_grad_(True)
    nn.Module.float(own)
    return DraftTrainee(own, parts.target, parts.tokenizer), runner


def _eagle(parts: EngineParts, heads: Sequence[str]) -> tuple[Trainee, Served]:
    head = parts.heads.get("eagle")
    if not isinstance(head, EagleHead):
        raise ConfigError("learning needs a draft model or an EAGLE head: name it with --draft")
    folders = [folder for folder in map(head_folder, heads) if folder is not None]
    folder = next(one for one in folders if kind_of(read_head_config(one)) == "eagle")
    options = TrainOptions("eagle", folder, replies=folder, init=folder)
    trainee = trainee_of(parts.target, parts.tokenizer, options)
    if sum(weight.numel() for weight in trainee.module.parameters()) != head.parameters:
        raise ModelUnsupported(
            f"learning: the head in {folder} has an embedding of its own, which can't be trained here"
        )
    return trainee, head
