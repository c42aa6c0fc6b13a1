"""Tiny drafting heads: trained for a tiny model in a second, or with weights at random."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specstream.drafting.proposers.eagle import EagleProposer
from specstream.methods import EagleProposerConfig
from specstream.model.forward import Extras, ForwardInput
from specstream.model.heads.eagle import EagleHead
from specstream.model.heads.tensors import Tensors
from specstream.model.runner import ModelRunner
from specstream.training.eagle import EagleTrainee
from specstream.training.trainee import TrainingBatch

_TRAINED: dict[int, EagleTrainee] = {}  # by model; each test module has a model or two


@torch.inference_mode()
def greedy_replies(runner: ModelRunner, prompts: list[list[int]], length: int) -> Tensor:
    """``[B, prompt + length]``: what the model goes on with; all prompts of one length."""
    rows = list[Tensor]()
    for prompt in prompts:
        cache, ids = runner.new_cache(), list(prompt)
        unread = prompt
        for _ in range(length):
            (logits,) = runner.forward([ForwardInput(torch.tensor(unread), cache)]).logits
            unread = [int(logits[-1].argmax())]
            ids += unread
        rows.append(torch.tensor(ids))
    return torch.stack(rows)


def batch_of(runner: ModelRunner, ids: Tensor, prompt: int, depths: tuple[int, ...]) -> TrainingBatch:
    """Sequences with the target's states, of which the first ``prompt`` tokens are the prompt."""
    norm, last = runner.model.model.norm, runner.model.config.num_hidden_layers
    with torch.inference_mode():
        inputs = [ForwardInput(row, runner.new_cache()) for row in ids]
        states = torch.stack(runner.forward(inputs, Extras((*depths, last))).states)
        final = norm(states[:, :, -1])
    replies = torch.arange(ids.shape[1]).expand(ids.shape) >= prompt
    return TrainingBatch(ids, replies.clone(), ids.numel(), states[:, :, :-1].clone(), final.clone())


def check_learning(trainee: Any, batch: TrainingBatch, rate: float) -> None:
    """The loss falls in 25 steps; what is accepted is part of what is counted."""
    optimizer = torch.optim.AdamW(trainee.module.parameters(), lr=rate)
    seen = list[float]()
    for _ in range(25):
        found = trainee.losses(batch, acceptance=0.5)
        optimizer.zero_grad()
        torch.autograd.backward(found.loss)
        optimizer.step()
        seen.append(found.loss.item())
    assert sum(seen[-3:]) < 0.85 * sum(seen[:3])
    assert all(0 <= a <= n for a, n in zip(found.accepted, found.counted, strict=True))


def trained_eagle(model: PreTrainedModel, steps: int = 20) -> EagleTrainee:
    """A head for ``model`` that has seen a few of its replies."""
    if id(model) not in _TRAINED:
        trainee = EagleTrainee(model, steps=3)
        runner, noise = ModelRunner(model), torch.Generator().manual_seed(5)
        size = int(model.config.vocab_size)
        prompts = torch.randint(2, size, (24, 6), generator=noise).tolist()
        batch = batch_of(runner, greedy_replies(runner, prompts, 40), 6, trainee.depths)
        optimizer = torch.optim.AdamW(trainee.module.parameters(), lr=3e-3)
        for _ in range(steps):
            trainee.losses(batch, acceptance=0.0).loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
        _TRAINED[id(model)] = trainee
    return _TRAINED[id(model)]


def eagle_head(trainee: EagleTrainee, runner: ModelRunner, output: Tensor | None = None) -> EagleHead:
    """The trainee's head in service, without files; ``output``: an output head of its own."""
    tensors = {name: one.detach() for name, one in trainee.module.state_dict().items()}
    shape = trainee.module.shape
    if shape.draft_vocab_size < shape.vocab_size:
        tensors["d2t"] = trainee.vocabulary.ids - torch.arange(shape.draft_vocab_size)
    if output is not None:
        tensors["lm_head.weight"] = output
    return EagleHead(shape, Tensors(Path(), tensors), runner)


def random_eagle(
    model: PreTrainedModel,
    seed: int = 0,
    *,
    vocabulary: Tensor | None = None,
    scale: float = 1.0,
    variants: Mapping[str, Any] | None = None,
) -> EagleTrainee:
    """A head that knows nothing."""
    trainee = EagleTrainee(model, vocabulary=vocabulary, **variants or {})
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in trainee.module.parameters():
            weight.add_(torch.randn(weight.shape, generator=noise) * 0.1).mul_(scale)
    return trainee


def eagle_proposer(model: PreTrainedModel, **settings: Any) -> EagleProposer:
    """A proposer over a trained head."""
    runner = ModelRunner(model)
    head = eagle_head(trained_eagle(model), runner)
    config = EagleProposerConfig.model_validate(settings)
    return EagleProposer(config, head, runner.vocab_size, frozenset({1}), prefill_chunk=7)
