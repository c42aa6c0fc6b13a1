"""The characters of a reply as they come, for readers that wait for more of them.

A reader is a generator: it yields where it needs text that was not written yet, so it makes the same of
a reply however that is split.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

__all__ = ["Inlet", "Step", "first_of"]

T = TypeVar("T")
Step: TypeAlias = Generator[None, None, T]


class Inlet:
    """Text that was fed and not read yet. At the end of the reply, reads give ``""``.

    Attributes:
        ended: Whether nothing more will be fed.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._mark: int | None = None
        self.ended = False

    def feed(self, text: str) -> None:
        """Add text; what was read is forgotten, unless it is marked."""
        kept = self._at if self._mark is None else self._mark
        self._text = self._text[kept:] + text
        self._at -= kept
        self._mark = None if self._mark is None else 0

    @property
    def pending(self) -> str:
        """What can be read at once."""
        return self._text[self._at :]

    def skip(self, count: int) -> None:
        """Read characters that are pending; a negative number makes them pending again."""
        self._at += count

    def mark(self) -> None:
        """Keep what is read from here on, for `since_mark` or `rewind`."""
        self._mark = self._at

    def since_mark(self) -> str:
        """What was read since the mark."""
        assert self._mark is not None
        return self._text[self._mark : self._at]

    def rewind(self) -> None:
        """Make what was read since the mark pending again."""
        assert self._mark is not None
        self._at = self._mark
        self.release()

    def release(self) -> None:
        """Forget the mark."""
        self._mark = None

    def peek(self) -> Step[str]:
        """The next character, still to be read."""
        while self._at == len(self._text):
            if self.ended:
                return ""
            yield
        return self._text[self._at]

    def take(self) -> Step[str]:
        """Read a character."""
        char = yield from self.peek()
        self._at += len(char)
        return char

    def space(self) -> Step[str]:
        """Read white space; returns the character behind it, still to be read."""
        while (char := (yield from self.peek())).isspace():
            self._at += 1
        return char

    def takes(self, mark: str) -> Step[bool]:
        """Whether ``mark`` comes next; then it is read."""
        while not self.pending.startswith(mark):
            if self.ended or not mark.startswith(self.pending):
                return False
            yield
        self._at += len(mark)
        return True

    def until(self, *marks: str) -> Step[tuple[str, str]]:
        """Read up to the first of ``marks``, and that too; without one, up to the end."""
        while True:
            at, mark = first_of(marks, self.pending)
            if mark or self.ended:
                break
            yield
        text = self.pending[:at] if mark else self.pending
        self._at += len(text) + len(mark)
        return text, mark


def first_of(marks: tuple[str, ...], text: str) -> tuple[int, str]:
    """Where the first of ``marks`` begins in ``text`` and which it is.

    Without one: where the longest end of the text begins that may become one, and ``""``.
    """
    found = [(at, -len(mark), mark) for mark in marks if (at := text.find(mark)) >= 0]
    if found:
        at, _, mark = min(found)
        return at, mark
    longest = max(map(len, marks), default=1) - 1
    for at in range(max(0, len(text) - longest), len(text)):
        if any(mark.startswith(text[at:]) for mark in marks):
            return at, ""
    return len(text), ""
