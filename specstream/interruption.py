"""What was heard of a turn, and what was not."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Interruption"]


@dataclass(frozen=True, slots=True)
class Interruption:
    """What was heard of a turn, and what was not.

    Attributes:
        heard: The reply's text up to the last word that was heard completely, as the model wrote it:
            this is the assistant's message in the history; empty if no word was heard.
        unheard: What the model had written after that.
        tokens_kept: Tokens of the reply that wrote ``heard``; the KV cache is rolled back to these.
        tokens_dropped: Tokens of the reply after them.
        played_ms: How much of the turn's audio was heard.
        complete: Whether the whole turn had been heard, so that nothing was left to interrupt.
    """

    heard: str
    unheard: str
    tokens_kept: int
    tokens_dropped: int
    played_ms: float
    complete: bool = False
