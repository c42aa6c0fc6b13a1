"""Events of a `Listener`: how a turn begins, goes on and ends, and its transcript."""

from __future__ import annotations

from dataclasses import dataclass

from specstream.errors import AdapterFailed
from specstream.pipeline.listening_interfaces import Transcript

__all__ = [
    "ListenerEvent",
    "ListeningFailed",
    "TurnEnded",
    "TurnHeard",
    "TurnLost",
    "TurnPartial",
    "TurnPaused",
    "TurnStarted",
]


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """A voice is heard since ``at_ms``; the turn's audio begins at ``start_ms``.

    Turns count from 0; times are milliseconds from the listener's first sample.
    """

    turn: int
    at_ms: float
    start_ms: float


@dataclass(frozen=True, slots=True)
class TurnPartial:
    """What was said so far; later audio may change any word.

    ``again``: the text is the same as in the turn's event before; that is told once for each text.
    """

    turn: int
    transcript: Transcript
    again: bool = False


@dataclass(frozen=True, slots=True)
class TurnPaused:
    """The speaker pauses after these words: the turn may be over, or go on."""

    turn: int
    transcript: Transcript


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The turn is over. `TurnHeard` or `TurnLost` follows."""

    turn: int
    start_ms: float
    end_ms: float


@dataclass(frozen=True, slots=True)
class TurnHeard:
    """The turn's final transcript; empty if it was no speech."""

    turn: int
    transcript: Transcript


@dataclass(frozen=True, slots=True)
class TurnLost:
    """The turn has no transcript: the recogniser raised or passed its deadline. The listener goes on."""

    turn: int
    error: AdapterFailed


@dataclass(frozen=True, slots=True)
class ListeningFailed:
    """The turn detector raised: the listener ignores all audio from here on."""

    error: AdapterFailed


ListenerEvent = (
    TurnStarted | TurnPartial | TurnPaused | TurnEnded | TurnHeard | TurnLost | ListeningFailed
)
