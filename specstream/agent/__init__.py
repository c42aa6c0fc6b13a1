"""A talking agent: engine, ears, voice, avatar, prompts and play-out, joined."""

from specstream.agent.agent import Agent
from specstream.agent.events import (
    ReplyEnded,
    ReplyFailed,
    ReplyPaused,
    ReplyResumed,
    ReplyStarted,
)
from specstream.agent.preempt import Preempt, PreemptReport

__all__ = [
    "Agent",
    "Preempt",
    "PreemptReport",
    "ReplyEnded",
    "ReplyFailed",
    "ReplyPaused",
    "ReplyResumed",
    "ReplyStarted",
]
