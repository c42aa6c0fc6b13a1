"""Logits processors: a registry that implements the sampling parameters of stage ``"logits"``."""

from specstream.model.processors.base import ModelFacts
from specstream.model.processors.parameters import PROCESSORS
from specstream.model.processors.pipeline import LogitsPipeline, Processed

__all__ = ["PROCESSORS", "LogitsPipeline", "ModelFacts", "Processed"]
