"""specstream: a speculative token stream that feeds speech, avatar and picture stages.

Names are resolved on first use, so ``import specstream`` costs milliseconds and loads no torch. What
users import is here and in `specstream.agent`, `client`, `drafting`, `errors`, `listening`, `playback`,
`server`, `stages` and `testing`; all other modules may change without notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specstream.lazy import offers

__version__ = "0.3.0"

if TYPE_CHECKING:
    from specstream.agent.agent import Agent as Agent
    from specstream.config import EngineConfig as EngineConfig, LearningConfig as LearningConfig
    from specstream.engine.engine import Engine as Engine
    from specstream.engine.generation import Generation as Generation
    from specstream.engine.openai.engine import OpenAIEngine as OpenAIEngine
    from specstream.engine.protocol import (
        EngineCapabilities as EngineCapabilities,
        TextEngine as TextEngine,
    )
    from specstream.engine.session import Session as Session
    from specstream.errors import SpecstreamError as SpecstreamError
    from specstream.metrics import Report as Report
    from specstream.playback.turn import Turn as Turn
    from specstream.stages.contract import Event as Event
    from specstream.stages.pipeline import Pipeline as Pipeline
    from specstream.types import (
        AvatarCue as AvatarCue,
        Chunk as Chunk,
        Grammar as Grammar,
        Interruption as Interruption,
        Message as Message,
        Phrase as Phrase,
        RawPrompt as RawPrompt,
        SamplingParams as SamplingParams,
        ScenePrompt as ScenePrompt,
        Span as Span,
        Speech as Speech,
        TokenLogprob as TokenLogprob,
        Tool as Tool,
        ToolCall as ToolCall,
        Tools as Tools,
        Truncation as Truncation,
    )

__all__, __getattr__, __dir__ = offers(
    __name__,
    {
        "specstream.agent.agent": "Agent",
        "specstream.config": "EngineConfig LearningConfig",
        "specstream.engine.engine": "Engine",
        "specstream.engine.generation": "Generation",
        "specstream.engine.openai.engine": "OpenAIEngine",
        "specstream.engine.protocol": "EngineCapabilities TextEngine",
        "specstream.engine.session": "Session",
        "specstream.errors": "SpecstreamError",
        "specstream.metrics": "Report",
        "specstream.playback.turn": "Turn",
        "specstream.stages.contract": "Event",
        "specstream.stages.pipeline": "Pipeline",
        "specstream.types": (
            "AvatarCue Chunk Grammar Interruption Message Phrase RawPrompt "
            "SamplingParams ScenePrompt Span Speech TokenLogprob Tool ToolCall Tools Truncation"
        ),
    },
)
