"""A talking agent: joins engine, listener, voice, avatar, prompt adapter and play-out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specstream.lazy import offers

if TYPE_CHECKING:
    from specstream.agent.agent import Agent as Agent
    from specstream.agent.events import (
        ReplyEnded as ReplyEnded,
        ReplyFailed as ReplyFailed,
        ReplyPaused as ReplyPaused,
        ReplyResumed as ReplyResumed,
        ReplyStarted as ReplyStarted,
        ToolEnded as ToolEnded,
        ToolStarted as ToolStarted,
    )
    from specstream.agent.tools import AgentTool as AgentTool
    from specstream.listening.preempt import Preempt as Preempt, PreemptReport as PreemptReport

__all__, __getattr__, __dir__ = offers(
    __name__,
    {
        "specstream.agent.agent": "Agent",
        "specstream.agent.events": (
            "ReplyEnded ReplyFailed ReplyPaused ReplyResumed ReplyStarted ToolEnded ToolStarted"
        ),
        "specstream.listening.preempt": "Preempt PreemptReport",
        "specstream.agent.tools": "AgentTool",
    },
)
