"""A `Listener`'s settings, and its events: how a turn begins, goes on and ends."""

from __future__ import annotations

from dataclasses import dataclass

from specstream.checks import check_ranges
from specstream.errors import AdapterFailed, ConfigError
from specstream.listening.interfaces import Transcript

__all__ = [
    "ListenerEvent",
    "ListenerSettings",
    "ListeningFailed",
    "TurnEnded",
    "TurnHeard",
    "TurnLost",
    "TurnPartial",
    "TurnPaused",
    "TurnStarted",
]


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """How a listener cuts turns and how often it recognises.

    Args:
        manual: A turn begins with the first audio and ends with ``commit``; nothing is detected.
        threshold: See `TurnDetector.open`.
        prefix_ms: Audio from before the detected start that belongs to the turn.
        silence_ms: Silence that ends a turn; with ``by_words`` after a complete sentence.
        by_words: The last words of the transcript shorten or lengthen that silence (see
            `specstream.listening.endings`).
        patience: Factor on that silence, with ``by_words`` only.
        range_db: How much quieter than the user's turns so far a voice may be, and with 4 more, than the
            open one so far. Quieter ones are others'.
        stall_s: A turn whose transcript hasn't grown for so long ends though voices are heard, with
            ``by_words`` only: they are others'.
        max_turn_s: A longer turn is cut in two; in manual mode, audio beyond it is refused.
        partial_ms: New audio that a partial transcript needs. None: no partial transcripts.
        deadline_s: Seconds that a recognition may take, without the time that it waits for others.
        language: The speaker's language, an ISO 639-1 code. None: any.

    Raises:
        ConfigError: a value out of range.
    """

    manual: bool = False
    threshold: float = 0.5
    prefix_ms: float = 300.0
    silence_ms: float = 500.0
    by_words: bool = True
    patience: float = 1.0
    range_db: float = 12.0
    stall_s: float = 1.0
    max_turn_s: float = 120.0
    partial_ms: float | None = 500.0
    deadline_s: float = 10.0
    language: str | None = None

    def __post_init__(self) -> None:
        check_ranges(
            self,
            threshold=(0, 1),
            prefix_ms=(0, 5_000),
            silence_ms=(0, 10_000),
            patience=(0.1, 10),
            range_db=(0, 100),
            stall_s=(0.1, 600),
            max_turn_s=(1, 600),
            deadline_s=(0.1, 600),
        )
        if self.partial_ms is not None and self.partial_ms < 100:
            raise ConfigError("partial_ms must be at least 100")


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
