"""A talking agent: joins engine, listener, voice, avatar, prompt adapter and play-out."""

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
