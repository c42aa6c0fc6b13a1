"""A talking agent: engine, ears, voice, avatar, prompts and play-out, joined."""

from specstream.agent.agent import Agent
from specstream.agent.events import (
    ReplyEnded,
    ReplyFailed,
    ReplyPaused,
    ReplyResumed,
    ReplyStarted,
)

__all__ = ["Agent", "ReplyEnded", "ReplyFailed", "ReplyPaused", "ReplyResumed", "ReplyStarted"]
