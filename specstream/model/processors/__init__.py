"""Logits processors: what the sampling parameters of stage ``"logits"`` do, in a registry."""

from specstream.model.processors.parameters import PROCESSORS
from specstream.model.processors.pipeline import LogitsPipeline, Processed

__all__ = ["PROCESSORS", "LogitsPipeline", "Processed"]
