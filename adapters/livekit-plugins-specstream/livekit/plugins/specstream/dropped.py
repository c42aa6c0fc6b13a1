"""How many replies were written for nothing."""

from dataclasses import dataclass

__all__ = ["DroppedReplies"]


@dataclass(frozen=True, slots=True)
class DroppedReplies:
    """Replies of an `LLM` that the conversation didn't need to the end, so far.

    Attributes:
        cancelled: Replies that were stopped while they were written: a preemptive one that was
            withdrawn, or one that the user interrupted.
        superseded: Replies that were complete when another one to the same point of the chat was asked
            for: preemptive ones that were thrown away.
        tokens: The tokens of all these.
        referenced: Replies that were given the text of a dropped one as their reference.
    """

    cancelled: int = 0
    superseded: int = 0
    tokens: int = 0
    referenced: int = 0
