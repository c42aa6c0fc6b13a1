"""What an agent tells besides the events of its pipeline and of its ears."""

from __future__ import annotations

from dataclasses import dataclass

from specstream.errors import SpecstreamError
from specstream.metrics import Report
from specstream.turn import Interruption

__all__ = ["ReplyEnded", "ReplyFailed", "ReplyPaused", "ReplyResumed", "ReplyStarted"]


@dataclass(frozen=True, slots=True)
class ReplyStarted:
    """The agent begins to answer ``asked``; replies count from 0."""

    reply: int
    asked: str


@dataclass(frozen=True, slots=True)
class ReplyPaused:
    """A voice is heard: the play-out waits until it is clear whether words were said."""

    played_ms: float


@dataclass(frozen=True, slots=True)
class ReplyResumed:
    """No word was said: the play-out goes on with the next sample."""

    played_ms: float


@dataclass(frozen=True, slots=True)
class ReplyEnded:
    """The reply is over; ``outcome`` says what was heard of it and whether that is all."""

    reply: int
    outcome: Interruption
    report: Report


@dataclass(frozen=True, slots=True)
class ReplyFailed:
    """The reply ended with an error; the agent goes on."""

    reply: int
    error: SpecstreamError
