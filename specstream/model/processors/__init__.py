"""Logits processors: one class per sampling parameter that changes the logits before the warpers.

To add a parameter: declare its field in `specstream.params.SamplingParams` with stage ``"logits"``
(default, range, example), write its class after the pattern of `specstream.model.processors.base`, and
add both to `PROCESSORS` in the place where it is to be applied.
"""

from specstream.model.processors.base import Context, ModelFacts, Processor
from specstream.model.processors.pipeline import PROCESSORS, LogitsPipeline, Processed

__all__ = ["PROCESSORS", "Context", "LogitsPipeline", "ModelFacts", "Processed", "Processor"]
