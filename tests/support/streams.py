"""Tiny heads for Speculative Streaming."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from specstream.drafting.research.streaming import StreamingProposer
from specstream.methods import StreamingProposerConfig
from specstream.model.heads.research.streaming import StreamingHead, load
from specstream.model.runner import ModelRunner
from specstream.training.research.streaming import StreamingTrainee

STREAMS = 3


def trainee_of(model: PreTrainedModel, noise: float = 0.0, **options: Any) -> StreamingTrainee:
    """Streams before their training: their adapters do nothing, or something random."""
    settings = {"streams": STREAMS, "stream_layers": 1, "rank": 4, **options}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = StreamingTrainee(ModelRunner(model), **settings)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for one in made.module.parameters():
            one.add_(torch.randn(one.shape, generator=generator) * noise)
    return made


def streaming_head(runner: ModelRunner, noise: float = 0.0, **options: Any) -> StreamingHead:
    """The head of a folder that `trainee_of` saved."""
    with tempfile.TemporaryDirectory() as folder:
        trainee_of(runner.model, noise, **options).save(Path(folder), {})
        return load(Path(folder), runner)


def streaming_proposer(target: ModelRunner, noise: float = 0.0, **settings: Any) -> StreamingProposer:
    """Streams that are right now and then, and never cut short."""
    config = StreamingProposerConfig(**{"min_confidence": 0.0, **settings})
    return StreamingProposer(config, streaming_head(target, noise))
