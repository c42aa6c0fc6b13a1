"""Events of the agent itself, in addition to those of its pipeline and its listener."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specstream.errors import SpecstreamError
from specstream.metrics import Report
from specstream.playback.turn import Interruption
from specstream.tools import ToolCall

__all__ = [
    "ReplyEnded",
    "ReplyFailed",
    "ReplyPaused",
    "ReplyResumed",
    "ReplyStarted",
    "ToolEnded",
    "ToolStarted",
    "ToolStatus",
]

ToolStatus = Literal["completed", "failed", "timed_out", "cancelled", "unconfirmed"]
"""How a call ended; ``unconfirmed``: nothing was done, the user is to be asked first."""


@dataclass(frozen=True, slots=True)
class ReplyStarted:
    """The agent begins to answer ``asked``; replies count from 0.

    A reply to results of tools has the text of the question that they came from.
    """

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


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """The model calls a tool; it runs beside the reply's speech."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """A call is over; ``result`` is what the model is told."""

    call: ToolCall
    status: ToolStatus
    result: str
