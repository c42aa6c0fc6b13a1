"""An answer to what the user had probably said."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specstream import Message

__all__ = ["EarlyReply"]


class EarlyReply:
    """The reply to a turn of which it isn't known yet that it has ended.

    Args:
        messages: What was asked, the turn's presumed text last.
        text: Returns what was written of the reply so far.
    """

    def __init__(self, messages: Sequence[Message], text: Callable[[], str]) -> None:
        self._before = list(messages[:-1])
        self._text = text
        self.dropped = False

    def reference(self, messages: Sequence[Message]) -> str:
        """What was written, if ``messages`` are the same conversation up to the last turn."""
        return self._text() if list(messages[:-1]) == self._before else ""
