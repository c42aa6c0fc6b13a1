"""specstream: a speculative token stream that feeds speech, avatar and picture stages.

Names are resolved on first use, so ``import specstream`` costs milliseconds and loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.2.0"

if TYPE_CHECKING:
    from specstream.agent import Agent
    from specstream.config import EngineConfig, LearningConfig
    from specstream.engine.engine import Engine
    from specstream.engine.generation import Generation
    from specstream.engine.session import Session
    from specstream.errors import SpecstreamError
    from specstream.metrics import Report
    from specstream.stages.pipeline import Pipeline
    from specstream.types import Chunk, Message, SamplingParams, Tool, ToolCall, Tools, Truncation

_HOMES = {
    "Agent": "specstream.agent",
    "Chunk": "specstream.types",
    "Engine": "specstream.engine.engine",
    "EngineConfig": "specstream.config",
    "Generation": "specstream.engine.generation",
    "LearningConfig": "specstream.config",
    "Message": "specstream.types",
    "Pipeline": "specstream.stages.pipeline",
    "Report": "specstream.metrics",
    "SamplingParams": "specstream.types",
    "Session": "specstream.engine.session",
    "SpecstreamError": "specstream.errors",
    "Tool": "specstream.types",
    "ToolCall": "specstream.types",
    "Tools": "specstream.types",
    "Truncation": "specstream.types",
}

__all__ = [
    "Agent",
    "Chunk",
    "Engine",
    "EngineConfig",
    "Generation",
    "LearningConfig",
    "Message",
    "Pipeline",
    "Report",
    "SamplingParams",
    "Session",
    "SpecstreamError",
    "Tool",
    "ToolCall",
    "Tools",
    "Truncation",
    "__version__",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'specstream' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
