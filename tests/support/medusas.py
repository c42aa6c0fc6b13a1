"""Tiny Medusa heads: trained for a tiny model in a moment, or with weights at random."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specstream.drafting.research.medusa import MedusaProposer
from specstream.methods import MedusaProposerConfig
from specstream.model.heads.research.medusa import MedusaHead
from specstream.model.heads.tensors import Tensors
from specstream.model.runner import ModelRunner
from specstream.training.research.medusa import MedusaTrainee
from tests.support.heads import batch_of, greedy_replies

_TRAINED: dict[int, MedusaTrainee] = {}  # by model; each test module has a model or two


def trained_medusa(model: PreTrainedModel, steps: int = 40) -> MedusaTrainee:
    """Heads for ``model`` that have seen a few of its replies."""
    if id(model) not in _TRAINED:
        runner, noise = ModelRunner(model), torch.Generator().manual_seed(5)
        trainee, size = MedusaTrainee(runner, heads=3), int(model.config.vocab_size)
        prompts = torch.randint(2, size, (24, 6), generator=noise).tolist()
        batch = batch_of(runner, greedy_replies(runner, prompts, 40), 6, ())
        optimizer = torch.optim.AdamW(trainee.module.parameters(), lr=1e-2)
        for _ in range(steps):
            trainee.losses(batch, acceptance=0.0).loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
        _TRAINED[id(model)] = trainee
    return _TRAINED[id(model)]


def medusa_head(trainee: MedusaTrainee, runner: ModelRunner) -> MedusaHead:
    """The trainee's heads in service, without files."""
    tensors = {name: one.detach() for name, one in trainee.module.state_dict().items()}
    if trainee.vocabulary.pruned:
        tensors["token_map"] = trainee.vocabulary.ids
    return MedusaHead(trainee.shape, Tensors(Path(), tensors), runner)


def random_medusa(
    runner: ModelRunner, scale: float = 1.0, *, vocabulary: Tensor | None = None, layers: int = 1
) -> MedusaTrainee:
    """Heads that know nothing."""
    trainee = MedusaTrainee(runner, heads=3, layers=layers, vocabulary=vocabulary)
    noise = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in trainee.module.parameters():
            weight.copy_(torch.randn(weight.shape, generator=noise) * scale)
    return trainee


def medusa_proposer(model: PreTrainedModel, **settings: Any) -> MedusaProposer:
    """A proposer over trained heads."""
    head = medusa_head(trained_medusa(model), ModelRunner(model))
    config = MedusaProposerConfig.model_validate(settings)
    return MedusaProposer(config, head, frozenset({1}))
