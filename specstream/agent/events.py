"""Events of the agent itself, in addition to those of its pipeline and its listener."""

from __future__ import annotations

from dataclasses import dataclass

from specstream.errors import SpecstreamError
from specstream.metrics import Report
from specstream.playback.turn import Interruption

__all__ = ["ReplyEnded", "ReplyFailed", "ReplyPaused", "ReplyResumed", "ReplyStarted"]


@dataclass(frozen=True, slots=True)
class ReplyStarted:
    """The agent begins to answer ``asked``; replies count from 0."""

    reply: int
    asked: str


@dataclass(frozen=True, slots=True)
class ReplyPaused:
    """The user's voice was detected: play-out pauses until it is known whether words were said."""

    played_ms: float


@dataclass(frozen=True, slots=True)
class ReplyResumed:
    """The user said no word: play-out goes on with the next sample."""

    played_ms: float


@dataclass(frozen=True, slots=True)
class ReplyEnded:
    """The reply is over; ``outcome`` says how much of it was heard and whether that is all of it."""

    reply: int
    outcome: Interruption
    report: Report


@dataclass(frozen=True, slots=True)
class ReplyFailed:
    """The reply ended with an error; the agent goes on."""

    reply: int
    error: SpecstreamError
