"""The checks that a remote adapter's output fits its input."""

from __future__ import annotations

from typing import Any

from specstream.types import AvatarCue, Revoke

__all__ = ["Order"]


class Order:
    """Checks the output of one turn of one kind of adapter against its input; this one, nothing."""

    def send(self, item: object) -> None:
        """Count an item that is sent, or the frame that ends the input."""

    def check(self, item: Any, read: int | None = None, /) -> None:
        """Count an item that was received; ``read`` is that of a prompt's frame.

        Raises:
            Violation: it doesn't fit the input.
        """

    def check_rest(self, cue: AvatarCue) -> None:
        """Check a cue that brings the face to rest in a cancelled turn.

        Raises:
            Violation: it doesn't fit the input.
        """

    def flush(self) -> None:
        """The adapter has answered a flush."""

    def revoke(self, revoke: Revoke) -> None:
        """The adapter has answered to the first revoke that was unanswered."""

    def finish(self) -> None:
        """The adapter says that its output is complete.

        Raises:
            Violation: it is not.
        """
