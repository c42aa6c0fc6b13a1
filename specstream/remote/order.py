"""The input that an adapter has received and that still stands, and the order of its output."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from specstream.types import AvatarCue, Phrase, Revoke, Span, Speech

__all__ = ["Extent", "Given", "Order"]


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


class Extent(NamedTuple):
    """A phrase of the text, or as much of its speech as was sent.

    Attributes:
        chars: Its characters.
        tokens: The end of its tokens.
        begin: Its first sample.
        reach: The end of its audio and of its marks, which may come before their audio.
    """

    chars: Span
    tokens: int
    begin: int = 0
    reach: int = 0

    @staticmethod
    def of(item: Phrase | Speech) -> Extent:
        """Take the ranges of an item."""
        if isinstance(item, Phrase):
            return Extent(item.chars, item.tokens.end)
        ends = (mark.samples.end for mark in item.marks)
        reach = max(item.samples.end, *ends, 0)
        return Extent(item.chars, item.tokens.end, item.samples.start, reach)

    def joined(self, other: Extent) -> Extent:
        """This part and one after it; with the characters and the beginning of this one."""
        return self._replace(tokens=max(self.tokens, other.tokens), reach=max(self.reach, other.reach))


class Given:
    """What an adapter may have used: all that it was sent before the first unanswered revoke."""

    def __init__(self) -> None:
        self._parts: list[Extent] = []  # each reaches at least as far as those before
        self._waiting = deque[Extent | Revoke]()  # from the first unanswered revoke on

    @property
    def last(self) -> Extent:
        """The last part; its ends are those of everything that was given."""
        return self._parts[-1] if self._parts else Extent(Span(0, 0), 0)

    def send(self, item: object) -> None:
        """Count an item that is sent."""
        if isinstance(item, Revoke):
            self._waiting.append(item)
        elif isinstance(item, Phrase | Speech):
            part = Extent.of(item)
            if self._waiting:
                self._waiting.append(part)
            else:
                self._add(part)

    def revoke(self, from_char: int) -> int | None:
        """The first unanswered revoke was answered: forget the text that it withdraws.

        Returns:
            The first sample that is withdrawn; None if there is none.
        """
        begin = None
        while self._parts and self._parts[-1].chars.start >= from_char:
            begin = self._parts.pop().begin
        if self._parts and self._parts[-1].chars.end > from_char:
            cut = Span(self._parts[-1].chars.start, from_char)
            self._parts[-1] = self._parts[-1]._replace(chars=cut)
        self._waiting.popleft()
        while self._waiting and isinstance(part := self._waiting[0], Extent):
            self._waiting.popleft()
            self._add(part)
        return begin

    def _add(self, part: Extent) -> None:
        before = self.last
        if self._parts and before.chars == part.chars:
            self._parts[-1] = before.joined(part)
        else:
            self._parts.append(part.joined(before))
